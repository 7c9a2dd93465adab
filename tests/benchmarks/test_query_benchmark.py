import numpy as np
import pytest
import torch
from benchmarks import query_benchmark as benchmark
from benchmarks.cells import read_records
from benchmarks.query_benchmark import schur_scores
from benchmarks.tables.benchmark_tables import query_speed_table

from tests.query.brute_force import minimal_energies
from tests.sheaf_cases import WIDTH, make_sheaf


def test_the_loop_scores_by_the_schur_complement():
    sheaf = make_sheaf("dense, pair")
    x = torch.randn(6, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tree = ("via", ("via", ("anchor", 2), 1, False, 1.0), 3, True, 1.0)
    scores = schur_scores(sheaf, x, (2, 1, 7))
    energies = minimal_energies(tree, sheaf, x.numpy())
    np.testing.assert_allclose(scores.numpy() ** 2, energies, atol=1e-10)


def test_the_benchmark_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SHEAFPROP_DATA", raising=False)
    monkeypatch.setattr(benchmark, "NUM_ENTITIES", 200)
    monkeypatch.setattr(benchmark, "NUM_TRIPLES", 2_000)
    monkeypatch.setattr(benchmark, "_LOOP", 3)
    monkeypatch.setattr(benchmark, "_QUICK", 20)
    monkeypatch.setattr(benchmark, "LARGE", (3_000, 20_000))
    benchmark.main(["--quick", "--runs", "2", "--json", str(tmp_path / "new" / "result.jsonl")])
    cases = read_records(tmp_path / "new" / "result.jsonl")
    names = [case["name"] for case in cases]
    assert names[0] == "2p of SE, d = 32, no relations shared"
    assert names[8] == "all 7 types"
    assert len(names) == 9 + 3
    assert cases[8]["queries"] == 7 * 20
    for case in cases[:-1]:
        low, high = case["ranges"]["ratio"]
        assert 0 < low <= case["ratio"] <= high
        assert (case["threads"], case["runs"]) == (torch.get_num_threads(), 2)
    for case in cases[9:11]:
        # A beam needs some rows, each of which is computed at least once.
        assert 20 < case["distinct_rows"] <= case["rows_computed"]
    assert cases[-1]["most_seconds"] >= cases[-1]["seconds"] > 0
    assert "ratio=" in capsys.readouterr().out
    loops, rankings, beams = query_speed_table(cases).split("\n\n")[1:]
    assert loops.splitlines()[2].startswith("| 2p of SE, d = 32, no relations shared | 20 | 20 |")
    assert len(rankings.splitlines()) == 2 + 8
    assert rankings.splitlines()[-1].startswith("| all 7 types | 140 |")
    assert len(beams.splitlines()) == 2 + 3
    assert beams.splitlines()[-1].startswith("| one 2p query, 300 entities")


def test_the_time_of_the_processor_is_that_of_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(SystemExit, match="OMP_NUM_THREADS=1"):
        benchmark.main(["--only", "entities", "--cpu-time"])
    with pytest.raises(SystemExit, match="--only entities"):
        benchmark.main(["--cpu-time"])
