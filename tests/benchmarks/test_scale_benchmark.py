import pytest
import torch
from benchmarks.cells import read_records
from benchmarks.measuring import anonymous_peak
from benchmarks.scale_benchmark import BATCH, describe, main


def test_the_benchmark_stores_both_ways_of_a_step_and_a_part_of_an_epoch(tmp_path, capsys):
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
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines == [describe(step), describe(part)]
    assert "the whole table" in lines[0]
    assert "7 steps" in lines[1]


def test_memory_that_was_freed_counts_and_mapped_files_do_not(tmp_path):
    size = 2**26
    torch.zeros(size // 8, dtype=torch.float64).numpy().tofile(tmp_path / "file")
    with anonymous_peak(0.001) as peak:
        before = peak()
        mapped = torch.from_file(str(tmp_path / "file"), size=size // 8, dtype=torch.float64)
        assert float(mapped.sum()) == 0.0
        assert peak() - before < size // 2
        held = torch.ones(size // 8, dtype=torch.float64)
        while peak() - before < size:
            held.add_(1)
        del held
        assert peak() - before >= size
