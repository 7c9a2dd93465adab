import pytest
import torch
from benchmarks import scale_benchmark
from benchmarks.cells import read_records
from benchmarks.measuring import anonymous_peak
from benchmarks.scale_benchmark import BATCH, describe, main


@pytest.fixture
def one_process(monkeypatch):
    """Everything in this process: new ones take seconds each."""

    def run_here(cells, store, **_):
        for cell in cells:
            found = cell.function(*cell.arguments, folder=store.folder(cell.key))
            store.put(cell.key, found)

    monkeypatch.setattr(scale_benchmark, "run_cells", run_here)


def test_the_benchmark_stores_both_ways_of_a_step_and_a_part_of_an_epoch(
    tmp_path, capsys, one_process
):
    place = tmp_path / "scale.jsonl"
    size = ["--entities", "3000", "--width", "8", "--runs", "2"]
    epoch = ["--epoch-entities", "4000", "--epoch-triples", str(700 * BATCH)]
    main([*size, *epoch, "--results", str(place)])
    step, part = read_records(place)
    assert (step["case"], step["entities"], step["runs"]) == ("step", 3000, 2)
    assert step["ratio"] == pytest.approx(
        sum(step["ranges"]["ratio"]) / 2  # of two runs, the median lies between
    )
    assert min(step[f"seconds_{way}"] for way in ("rows", "whole")) > 0
    assert (part["case"], part["steps"], part["triples"]) == ("epoch", 7, 700 * BATCH)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [describe(step), describe(part)]
    assert "the whole table" in lines[0]
    assert "7 steps" in lines[1]


def test_memory_that_was_freed_counts_and_mapped_files_do_not(tmp_path):
    size = 2**26
    torch.zeros(size // 8, dtype=torch.float64).numpy().tofile(tmp_path / "file")
    with anonymous_peak(0.001) as peak:
        before = peak()
        name, shared = str(tmp_path / "file"), True
        mapped = torch.from_file(name, shared, size=size // 8, dtype=torch.float64)
        assert float(mapped.sum()) == 0.0
        assert peak() - before < size // 2
        held = torch.ones(size // 8, dtype=torch.float64)
        seen = peak()
        del held
        # Some of it may lie where something else was freed.
        assert peak() - before >= seen - before > size // 2
