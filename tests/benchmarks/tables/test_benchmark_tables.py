from benchmarks.tables.benchmark_tables import (
    propagation_headline,
    propagation_table,
    service_table,
    training_table,
    transductive_table,
)

from sheafprop.report.tables import NOTHING


def step(name, maps, width, **more):
    case = {"name": f"{name}, {maps}, width {width}", "maps": maps, "width": width}
    return case | {"entities": 10, "triples": 20, "seconds": 0.002, "ratio_scatter": 15.04} | more


def limit(solver, applications, euler=2000):
    name = f"limit, WN18RR_v1, dense, 5% known, {solver}"
    return {
        "name": name,
        "maps": "dense",
        "known": 0.05,
        "solver": solver,
        "applications": applications,
        "applications_euler": euler,
    }


def table(*cases):
    facts = {"hardware": "2 cores", "torch": "2.13", "commit": "abc"}
    return propagation_table([facts | case for case in cases]).split("\n\n")


def cells(part):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]


def test_steps_name_graph_and_ratios():
    where, steps = table(
        step("power law, 300,000 entities", "identity", 128, ratio_torch_sparse=1.234),
        step("FB15k-237", "dense", 64, scatter_sample=1 / 64, peak_bytes=2**30),
    )
    assert where == "2 cores, torch 2.13, commit abc, threads not stored, runs not stored"
    parts = step("a", "dense", 64, commit="old"), step("b", "dense", 64)
    assert "commits old, abc" in table(*parts)[0]
    header, _, first, second = cells(steps)
    row = dict(zip(header, first, strict=True))
    assert row["graph"] == "power law, 300,000 entities"
    assert (row["step"], row["scatter"], row["torch-sparse"]) == ("2 ms", "15.0x", "1.23x")
    row = dict(zip(header, second, strict=True))
    assert (row["scatter"], row["torch-sparse"], row["memory"]) == (
        "15.0x (sample)",
        NOTHING,
        "1.00 GiB",
    )


def test_threads_runs_and_ranges_are_those_of_the_cases():
    many = {"threads": 2, "runs": 5}
    ranges = {"ratio_scatter": [11.0, 14.9], "seconds": [0.0015, 0.004]}
    where, steps = table(step("a", "identity", 64, ranges=ranges, **many))
    assert where.endswith("commit abc, 2 threads, median of 5 runs with their range")
    row = dict(zip(*(cells(steps)[i] for i in (0, 2)), strict=True))
    assert row["scatter"] == "15.0x (11.0x to 14.9x)"
    assert row["step"] == "2 ms (1.5 ms to 4 ms)"
    # One number of threads is never printed beside cases that had another, or none that is known.
    alone = step("b", "identity", 64, threads=1, runs=1)
    where = table(step("a", "identity", 64, **many), alone, step("c", "identity", 64))[0]
    assert "2 threads, median of 5 runs with their range (1 of 3 cases)" in where
    assert "1 thread, one run (1 of 3 cases)" in where
    assert where.endswith("threads not stored, runs not stored (1 of 3 cases)")


def test_the_headline_says_how_it_was_measured():
    large = "power law, 300,000 entities"
    ranges = {"ratio_scatter": [9.5, 12.0]}
    common = {"threads": 2, "runs": 3, "ratio_csr": 0.75}
    result = {"hardware": "H", "torch": "2", "commit": "abc"}
    cases = [
        step(large, "identity", 128, ratio_scatter=11.0, ranges=ranges, **common),
        step("FB15k-237", "dense", 64, ratio_scatter=80.0, ranges={}, **common),
    ]
    text = propagation_headline([result | case for case in cases])
    assert "identity maps 11.0x (9.5x to 12.0x); 0.75x the time" in text
    assert "Dense maps on FB15k-237: 80.0x at $d = 64$." in text
    assert text.endswith("H, torch 2, commit abc, 2 threads, median of 3 runs with their range.")
    for case in cases:
        del case["runs"]
    text = propagation_headline([result | case | {"note": "the best of seven"} for case in cases])
    assert text.endswith("2 threads, runs not stored: the best of seven.")


def test_growth_follows_the_largest_size():
    case = {"maps": "identity", "width": 64, "seconds": 2.5, "startup_seconds": 3, "peak_bytes": 1}
    case |= {"name": "x", "entities": 1000, "triples": 10_000, "peak_bytes_beyond_imports": 1}
    slopes = {"slope_seconds": 1.1, "slope_startup_seconds": 1.0}
    last = case | slopes | {"slope_peak_bytes_beyond_imports": 0.97}
    _, part = table(case, last)
    rows = cells(part)[2:]
    assert [row[0] for row in rows] == ["1,000", "1,000", ""]
    assert rows[-1][-3:] == ["exponent 1.10", "exponent 1.00", "exponent 0.97"]


def test_limits_put_solvers_side_by_side():
    _, part = table(limit("cg", 100), limit("chebyshev", 140))
    (row,) = cells(part)[2:]
    assert row == ["WN18RR_v1", "dense", "5%", "2,000", "100", "140", "20.0x"]


def test_extensions_and_predictions_in_a_row():
    case = {
        "model": "se",
        "maps": "dense, pair",
        "extend_seconds": 0.0912,
        "extend_peak_bytes": 2**20,
        "extend_one_seconds": 0.004,
        "ratio_recompute": 25.04,
        "predict_seconds": 0.0431,
        "bare_seconds": 0.0345,
        "ratio_bare": 1.249,
    }
    where, table = service_table([case]).split("\n\n")
    assert where == "threads not stored, runs not stored"
    (row,) = cells(table)[2:]
    assert row[2:] == ["91.2 ms", "1 MiB", "4 ms", "25.0x", "43.1 ms", "34.5 ms", "1.25x"]


def test_ratios_stand_beside_their_times():
    case = {
        "hardware": "2 cores",
        "torch": "2.13.0",
        "commit": "abc",
        "dataset": "codex-s",
        "model": "transe",
        "loss": "cross_entropy",
        "batch_size": 512,
        "train_triples": 4096,
        "test_triples": 500,
        "hidden_channels": 64,
        "seconds_epoch": 0.5,
        "seconds_epoch_pykeen": 12.0,
        "ratio_epoch": 24.0,
        "seconds_ranking": 0.02,
        "seconds_ranking_pykeen": 0.6,
        "ratio_ranking": 30.0,
        "threads": 1,
        "runs": 5,
        "ranges": {"ratio_ranking": [21.04, 31.0], "seconds_epoch": [0.25, 1.5]},
    }
    table = training_table([case, case])
    where, _, _, _, row, _ = table.strip().split("\n")
    assert where == "2 cores, torch 2.13.0, commit abc, 1 thread, median of 5 runs with their range"
    assert "range; 2 cores, torch 2.13.0, commit b, 1 thread" in training_table(
        [case, case | {"commit": "b"}]
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:5] == ["CoDEx-S", "TransE", "cross entropy over all entities", "64", "512"]
    assert cells[5:9] == ["4,096 triples", "500 ms (250 ms to 1.5 s)", "12.0 s", "24.0x"]
    assert cells[9:] == ["500 triples", "20 ms", "600 ms", "30.0x (21.0x to 31.0x)"]


def test_a_model_needs_both_libraries():
    ours = {
        "dataset": "codex-s",
        "model": "rotate",
        "library": "sheafprop",
        "training": {"loss": "nssa", "hidden_channels": 32},
        "epochs": 50,
        "mrr": 0.34561,
        "seconds": 60.0,
    }
    theirs = ours | {"library": "pykeen", "mrr": 0.3401, "seconds": 180.0}
    assert "RotatE" not in transductive_table([ours])
    row = transductive_table([ours, theirs]).strip().split("\n")[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["CoDEx-S", "RotatE", "NSSA", "32", "50", "0.346", "0.340"]
