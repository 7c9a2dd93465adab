import json
import math
import time

import pytest
import torch
from benchmarks import benchmark_cases, step_benchmark
from benchmarks import propagation_benchmark as benchmark
from benchmarks.benchmark_cases import power_law_multigraph
from benchmarks.cells import read_records, write_records
from benchmarks.limit_benchmark import limit_cases
from benchmarks.measuring import in_own_process, interleave, summarize, with_peak
from benchmarks.propagation_benchmark import slope
from benchmarks.step_benchmark import (
    TwoPropagates,
    adjacency,
    dense_coupling,
    in_chunks,
    lean_messages,
)

from sheafprop.sheaf import IdentitySheaf, PropagationPlan


@pytest.fixture(scope="module")
def graph():
    return power_law_multigraph(80, 600, num_relations=9)


def test_the_graph_is_seeded_skewed_and_without_loops(graph):
    again = power_law_multigraph(80, 600, num_relations=9)
    assert torch.equal(graph.edge_index, again.edge_index)
    assert not torch.equal(power_law_multigraph(80, 600, 9, seed=1).edge_type, graph.edge_type)
    large = power_law_multigraph(2_000, 40_000)
    assert (large.edge_index[0] != large.edge_index[1]).all()
    # Density falls like the root of the rank: a hundredth of the vertices, a tenth of the heads.
    degree = torch.bincount(large.edge_index[0], minlength=2_000).sort(descending=True)[0]
    assert float(degree[:20].sum() / degree.sum()) == pytest.approx(0.1, abs=0.02)
    assert large.edge_type.unique().numel() == 200


@pytest.mark.parametrize("maps", ["identity", "diagonal", "diagonal, real", "quaternions", "dense"])
def test_baselines_add_the_same_messages(graph, maps):
    sheaf = benchmark_cases.make_sheaf(maps, graph.num_relations, 8)
    x = benchmark_cases.make_features(maps, graph.num_nodes, 8)
    expected = PropagationPlan(
        graph.edge_index, graph.edge_type, sheaf, graph.num_nodes, dtype=x.dtype
    ).couple(x)[:, 0]
    if maps == "identity":
        coefficients = None
    elif maps == "dense":
        coefficients = sheaf.tail.mH @ sheaf.head
    else:
        coefficients = step_benchmark._coefficients(sheaf)
    two = TwoPropagates(coefficients, sheaf.algebra)
    assert torch.allclose(two(x[:, 0], graph), expected, atol=1e-4)
    assert torch.allclose(in_chunks(two, x[:, 0], graph, 77), expected, atol=1e-4)
    if maps != "dense":
        lean = lean_messages(x[:, 0], graph, coefficients, sheaf.algebra)
        assert torch.allclose(lean, expected, atol=1e-4)


def test_the_bare_matrices_are_those_of_a_step(graph):
    """The sparse product and the products with dense maps that a step is compared with."""
    x = benchmark_cases.make_features("dense", graph.num_nodes, 8)
    none = IdentitySheaf(relations=graph.num_relations)
    torch.testing.assert_close(adjacency(graph) @ x[:, 0], graph.plan(none, x).couple(x)[:, 0])
    dense = benchmark_cases.make_sheaf("dense", graph.num_relations, 8)
    coupling = dense_coupling(graph, dense)
    torch.testing.assert_close(coupling(x), graph.plan(dense, x).couple(x))
    sent = coupling.map_out(x)
    assert coupling.map_back(sent).shape == (len(sent), 1, 8)


@pytest.mark.parametrize("maps", ["identity", "diagonal", "diagonal, real", "dense"])
def test_a_case_has_every_key(graph, maps):
    if maps == "dense":
        case = step_benchmark.dense_case(graph, 8, rounds=1)
        needed = ("ratio_scatter", "peak_bytes_scatter", "bandwidth_fraction", "matmul_fraction")
    else:
        case = step_benchmark.step_case(graph, maps, 8, rounds=1)
        needed = ("ratio_scatter", "ratio_lean", "ratio_csr", "bandwidth_fraction")
    assert set(benchmark_cases.KEYS) <= set(case)
    assert case["seconds"] > 0
    assert all(case[key] > 0 for key in needed)
    assert (case["entities"], case["triples"], case["width"]) == (80, 600, 8)
    json.dumps(case)


def test_a_baseline_that_computes_something_else_is_refused():
    with pytest.raises(AssertionError, match="lean gives another step"):
        step_benchmark._check_equal(torch.ones(3), {"lean": lambda: torch.zeros(3)}, ("lean",))


def test_slope_of_a_power_law():
    cases = [{"triples": n, "seconds": 3e-9 * n**1.1} for n in (10, 100, 500)]
    assert slope(cases, "seconds") == pytest.approx(1.1)


def test_runs_are_summarized_by_median_and_range():
    measured = [(2.0, 7, 15.0), (9.0, 9, 11.0), (3.0, 9, 12.0), (2.5, 8, 14.0)]
    runs = [
        {"name": "a", "threads": 2, "seconds": s, "peak_bytes": p, "ratio": r, "width": 8}
        for s, p, r in measured
    ]
    assert summarize(runs) == {
        "name": "a",
        "threads": 2,
        "seconds": 2.75,
        "peak_bytes": 8,
        "ratio": 13.0,
        "width": 8,
        "runs": 4,
        "ranges": {"seconds": [2.0, 9.0], "peak_bytes": [7, 9], "ratio": [11.0, 15.0]},
    }
    assert summarize(runs[:1]) == runs[0] | {"runs": 1, "ranges": {}}


@pytest.mark.parametrize("change", [{"threads": 1}, {"name": "b"}, {"seconds": None}])
def test_runs_under_other_conditions_are_never_summarized(change):
    run = {"name": "a", "threads": 2, "seconds": 2.0}
    with pytest.raises(ValueError, match=f"same '{next(iter(change))}'"):
        summarize([run, run | change])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_case_says_how_many_threads_it_is_measured_with(graph, threads):
    """As torch has them then and there, whatever they are before and after."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        case = benchmark_cases.benchmark_case(graph, "identity", 8, 1.0)
        apart = in_own_process(benchmark_cases.benchmark_case, graph, "identity", 8, 1.0)
    finally:
        torch.set_num_threads(before)
    assert case["threads"] == apart["threads"] == threads


def test_limit_cases_count_applications(graph):
    cases = list(limit_cases(graph, (0.25,), width=2))
    assert [case["solver"] for case in cases] == ["cg", "chebyshev"] * 3
    for case in cases:
        assert 0 < case["applications"] <= case["applications_euler"]
        assert set(benchmark_cases.KEYS) <= set(case)
    assert cases[0]["applications_scipy_cg"] > 0


def test_functions_take_turns_and_the_median_time_counts(monkeypatch):
    clock = iter([0, 1, 10, 14, 20, 21, 30, 32])  # the first call, and then 4, 1 and 2 seconds
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert interleave({"one": lambda: None}, 3) == {"one": 2}
    clock = iter([0, 1, 10, 14])
    assert interleave({"one": lambda: None}, 2, warm=True) == {"one": 2.5}
    monkeypatch.undo()
    calls = {"fast": 0, "slow": 0}

    def call(name):
        calls[name] += 1
        # Long enough for one call at a turn.
        time.sleep(0.006)

    found = interleave({n: lambda n=n: call(n) for n in calls}, 4, slow=("slow",))
    assert calls == {"fast": 5, "slow": 3}
    assert all(0 < seconds < 10 for seconds in found.values())


def test_peak_counts_what_is_freed_again():
    def work():
        torch.ones(2**24)
        return 5

    result, peak = with_peak(work)
    assert result == 5
    if peak is not None:
        assert peak > 2**25


def written(name, seconds):
    return dict.fromkeys(benchmark_cases.KEYS) | {"name": name, "seconds": seconds}


def test_results_are_written_and_the_parts_of_a_file_stay(monkeypatch, tmp_path, capsys):
    path = tmp_path / "new" / "results.jsonl"

    def measure(*cases):
        monkeypatch.setattr(benchmark, "cases", lambda quick, device, parts: iter(cases))
        words = ["--quick", "--json", str(path), "--only", "steps", "--runs", "1"]
        benchmark.main(words)
        return [(case["name"], case["seconds"]) for case in read_records(path)]

    assert measure(written("a", math.pi), written("b", 1.0)) == [("a", math.pi), ("b", 1.0)]
    assert "run 1  a  seconds=3.142" in capsys.readouterr().out
    assert measure(written("b", 2.0), written("c", 3.0)) == [("a", math.pi), ("b", 2.0), ("c", 3.0)]
    content = read_records(path)
    assert all({"hardware", "torch", "commit"} <= set(record) for record in content)
    write_records(path, [record | {"hardware": "another machine"} for record in content])
    capsys.readouterr()
    with pytest.raises(SystemExit, match="another machine"):
        measure(written("a", 1.0))
    assert "run 1" not in capsys.readouterr().out  # refused before it measures


def test_every_stored_case_has_threads_runs_median_and_range(monkeypatch, tmp_path):
    path, seconds = tmp_path / "results.jsonl", iter([5.0, 1.0, 3.0])
    monkeypatch.setattr(
        benchmark, "cases", lambda *_: iter([written("a", next(seconds)) | {"threads": 2}])
    )
    benchmark.main(["--json", str(path), "--runs", "3"])
    (case,) = read_records(path)
    assert (case["threads"], case["runs"], case["seconds"]) == (2, 3, 3.0)
    assert case["ranges"] == {"seconds": [1.0, 5.0]}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_asked_for_in_vain():
    with pytest.raises(SystemExit, match="no CUDA device"):
        benchmark.main(["--device", "cuda"])
