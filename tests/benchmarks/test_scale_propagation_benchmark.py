import numpy as np
import pytest
from benchmarks import scale_propagation_benchmark as benchmark

from sheafprop.kernels.backend import numba_loops

pytestmark = pytest.mark.skipif(numba_loops() is None, reason="needs numba")


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setattr(benchmark, "in_own_process", lambda function, *given: function(*given))


@pytest.mark.parametrize("maps", benchmark.MAPS)
def test_both_ways_give_the_same_vectors(tmp_path, maps):
    found = benchmark.measure_ways(maps, 300, 2500, 16, 3, 4, tmp_path)
    assert found["apart"] == 0
    assert found["ratio_step"] == pytest.approx(found["step_files"] / found["step_memory"])
    assert 4 <= found["entry_bytes"] <= 8
    line = benchmark.describe({"case": "files", "entities": 300, **found})
    assert f"step {found['ratio_step']:.2f}x" in line


def test_other_vectors_are_refused(tmp_path, monkeypatch):
    write = benchmark._from_files

    def other(folder, *given):
        found = write(folder, *given)
        path = folder / "files.bin"
        x = np.fromfile(path, np.float32)
        x[5] += 1
        x.tofile(path)
        return found

    monkeypatch.setattr(benchmark, "_from_files", other)
    with pytest.raises(AssertionError, match="other vectors"):
        benchmark.measure_ways("identity", 100, 500, 8, 2, 4, tmp_path)


def test_plans_are_counted_and_sorted(tmp_path):
    found = benchmark.measure_plan("diagonal", 200, 4000, tmp_path)
    assert min(found["microseconds_counted"], found["microseconds_sorted"]) > 0
    assert "us a triple" in benchmark.describe({"case": "plan", **found})


def test_the_command_is_played_from_text_to_vectors(tmp_path):
    found = benchmark.measure_command(500, 3000, 8, "4GB", tmp_path)
    assert "3,000 facts, 4" in found["said"]
    assert len(np.load(tmp_path / "vectors" / "vectors.npy")) == len(
        (tmp_path / "vectors" / "entities.jsonl").read_text().splitlines()
    )
    line = benchmark.describe({"case": "command", "maps": "identity", **found})
    assert "estimated: memory" in line
    assert "took: memory" in line


def test_constants_of_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "_READ_TRIPLES", 2000)
    monkeypatch.setattr(benchmark, "_DRAWN_ROWS", 50)
    found = benchmark.measure_costs((200, 400), tmp_path)
    assert set(found["entry"]) == {"identity", "complex", "real"}
    assert all(len(lines) == 2 for lines in found["entry"].values())
    assert min(found[name] for name in ("read", "build", "draw", "copy")) > 0
    assert "READ, BUILD" in benchmark.describe({"case": "costs", "maps": "all", **found})
