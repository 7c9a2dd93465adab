import math

import pytest
from benchmarks.tables.completion_tables import (
    ablation_table,
    completion_cost_table,
    completion_report,
    completion_table,
)

from sheafprop.ranking import PROTOCOLS
from sheafprop.report.published import NEIGHBOURS, published_rows
from sheafprop.report.tables import NOTHING, escape

MARKS = ("paper", "read", "second-hand", "recalled")


def record(dataset="fb237_v1", model="rotate", preset="best", seed=0, protocol="full", **more):
    base = {"hits@1": 0.3, "hits@3": 0.5, "hits@10": 0.6, "mrr": 0.4, "iterations": 4}
    base |= {"selection_hits@10": 0.62, "seconds_train": 61.0, "seconds_select": 5.0}
    base |= {"seconds_propagate": 0.5, "seconds_rank": 0.25, "peak_bytes": 2**30}
    names = {"dataset": dataset, "model": model, "preset": preset, "seed": seed}
    return names | {"protocol": protocol} | base | more


def row(table, name):
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_seeds_are_averaged_with_their_standard_error():
    records = [record(seed=s, **{"hits@10": h, "mrr": h / 2}) for s, h in enumerate([0.6, 0.7])]
    cells = row(completion_table(records, "full"), "RotatE + sheaf propagation")
    assert cells == ["65.0 ± 5.0 (0.325)", NOTHING, NOTHING, NOTHING]


def test_protocols_are_never_mixed():
    records = [
        record(**{"hits@10": 0.6}),
        record(protocol="sampled50", **{"hits@10": 0.9}),
        record(protocol="merged", **{"hits@10": 0.7}),
    ]
    expected = {"full": "60.0", "sampled50": "90.0", "merged": "70.0"}
    for protocol, figure in expected.items():
        table = completion_table(records, protocol)
        assert row(table, "RotatE + sheaf propagation")[0].startswith(figure)
        others = {r["method"] for r in published_rows("completion", protocol, "fb237_v1")}
        assert all(name in table for name in others)
        for foreign in set(expected) - {protocol}:
            for other in published_rows("completion", foreign, "fb237_v1"):
                assert other["method"] in others or f"| {other['method']} \\[" not in table


def test_the_best_model_is_chosen_on_validation_and_never_on_test():
    records = [
        record(**{"selection_hits@10": 0.7, "hits@10": 0.5}),
        record(model="transe", **{"selection_hits@10": 0.6, "hits@10": 0.9}),
        record(model="se", preset="paper", **{"selection_hits@10": 0.9, "hits@10": 0.95}),
    ]
    cells = row(completion_table(records, "full"), "best model, chosen on validation")
    assert cells[0].startswith("50.0")


def test_a_figure_selected_on_what_it_ranks_is_shown_and_not_compared():
    """A marked row says so, and is never the best model whose data sets are counted."""
    mark = {"mark": "selected on half of the test"}
    records = [
        record("WN18RR_v1", preset="best, share from validation", protocol="merged", **mark),
        record("WN18RR_v1", protocol="merged", **mark, **{"selection_hits@10": 0.9}),
        record("WN18RR_v1", "se", protocol="merged", **{"hits@10": 0.4, "selection_hits@10": 0.3}),
    ]
    table = completion_table(records, "merged")
    marked = "RotatE + sheaf propagation, share from validation; selected on half of the test"
    assert row(table, marked)[0].startswith("60.0")
    assert row(table, "RotatE + sheaf propagation; selected on half of the test")[0][:4] == "60.0"
    assert row(table, "best model, chosen on validation")[0].startswith("40.0")


def test_only_verified_rows_are_printed_unless_asked():
    ours = [record(protocol="merged")]
    table = completion_table(ours, "merged")
    assert "A\\*Net" not in table
    assert "AdaProp" not in table
    cells = row(table, "RED-GNN † \\[LARS-research/RED-GNN README\\]")
    assert cells == ["48.3 (0.369)", "62.9 (0.469)", "60.3 (0.445)", "62.1 (0.442)"]
    # MRR alone, where its mark is asked for and that of Hits@10 is not.
    table = completion_table(ours, "merged", marks=["second-hand"])
    assert row(table, "A\\*Net \\[second-hand\\]")[0] == f"{NOTHING} (0.457)"
    table = completion_table(ours, "merged", marks=MARKS)
    assert row(table, "A\\*Net \\[recalled, MRR second-hand\\]")[0] == "58.9 (0.457)"
    assert "NBFNet, A\\*Net: the test set and the ties are those of the code" in table


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
def test_published_rows_stand_under_their_own_protocol(protocol):
    """Whatever their mark; those of a neighbour with the symbol of what differs."""
    for family in ("fb237", "WN18RR", "nell"):
        table = completion_table([record(f"{family}_v1", protocol=protocol)], protocol, marks=MARKS)
        found = [line for line in table.splitlines() if "\\[" in line]
        neighbours = [NEIGHBOURS[protocol]] if protocol in NEIGHBOURS else []
        lines = set()
        for group in (protocol, *(group for group, _ in neighbours)):
            for published in published_rows("completion", group, f"{family}_v1", marks=MARKS):
                name = published["method"] + (" †" if group != protocol else "")
                hits = f"| {100 * published['hits@10']:.1f}"
                (line,) = (x for x in found if x.startswith(f"| {escape(name)} \\["))
                assert hits in line
                lines.add(line)
        assert set(found) == lines
        assert ("†" in table) == bool(neighbours)
        assert all(f"† {differs}." in table for _, differs in neighbours)


def test_figures_of_a_neighbouring_protocol_are_counted_apart_and_with_what_differs():
    records = [record(f"WN18RR_v{v}", protocol="merged", **{"hits@10": 0.8}) for v in (1, 2, 3)]
    table = completion_table(records, "merged", marks=MARKS)
    own, near = (line for line in table.splitlines() if line.startswith("Number of data sets"))
    assert "A\\*Net 1 of 3" in own  # 81.0, 80.3 and 54.4
    assert "AdaProp" not in own
    assert near.startswith(
        "Number of data sets on which the best model reaches at least the published Hits@10 (valid "
        "+ test with realistic ties, so not exactly comparable with `merged`): "
    )
    assert "AdaProp 1 of 3" in near  # 86.6, 83.6 and 62.6
    assert "RED-GNN 3 of 3" in near  # 79.9, 78.0 and 52.4


def test_reached_data_sets_are_counted():
    records = [
        record(**{"hits@10": 0.52}),  # the paper's TransE: 50.5
        record("fb237_v2", **{"hits@10": 0.60}),  # 61.1
    ]
    table = completion_table(records, "full")
    assert "TransE + harmonic extension 1 of 2" in table
    assert "SE + harmonic extension 2 of 2" in table


def test_baselines_stand_in_a_row_of_their_own_once():
    records = [
        record(model="edge-type heuristic", seed=seed, **{"hits@10": 0.3}) for seed in range(3)
    ]
    table = completion_table([record(), *records], "full")
    assert row(table, "edge-type heuristic (mean rank of ties)")[0] == "30.0 (0.400)"
    assert "expectation over ties" not in table


@pytest.mark.parametrize("protocol", ["full", "sampled50"])
def test_the_heuristic_is_shown_under_both_conventions_for_ties(protocol):
    both = {"hits@10": 0.05, "expected_hits@10": 0.25, "mrr": 0.01, "expected_mrr": 0.125}
    records = [record("nell_v2", "edge-type heuristic", "none", protocol=protocol, **both)]
    table = completion_table(records, protocol)
    assert row(table, "edge-type heuristic (mean rank of ties)")[1] == "5.0 (0.010)"
    assert row(table, "edge-type heuristic (expectation over ties)")[1] == "25.0 (0.125)"


@pytest.mark.parametrize("name", ["hits@10", "mrr"])
def test_a_score_that_is_no_number_is_refused(name):
    with pytest.raises(ValueError, match="finite"):
        completion_table([record(**{name: math.nan})], "full")


def test_cost_is_the_mean_time_and_the_largest_memory():
    records = [
        record(seed=s, seconds_train=t, peak_bytes=p, iterations=k)
        for s, t, p, k in [(0, 60.0, 2**30, 3), (1, 80.0, 2**31, 6)]
    ]
    table = completion_cost_table(records)
    line = table.splitlines()[-1]
    assert [c.strip() for c in line.strip("|").split("|")] == [
        "fb237_v1", "RotatE", "70.0 s", "0.0 s", "5.0 s", "0.5 s", "0.2 s", "2.00 GiB", "3, 6",
    ]  # fmt: skip


def test_ablations_are_compared_with_the_preset():
    records = [
        {"dataset": "fb237_v1", "model": "rotate", "seed": s, "ablation": name}
        | {"validation_hits@10": value}
        for s in (0, 1)
        for name, value in (("as it is", 0.6), ("no label smoothing", 0.55))
    ]
    table = ablation_table(records)
    assert row(table, "as it is") == ["60.0 ± 0.0"]
    assert row(table, "no label smoothing") == ["55.0 ± 0.0 (-5.0)"]


def test_a_report_of_nothing_has_no_pictures(tmp_path):
    text = completion_report([], tmp_path)
    assert "png" not in text
    assert [p.name for p in tmp_path.iterdir()] == ["report.md"]


def test_the_report_has_every_protocol_and_picture(tmp_path):
    curves = {"validation_curve": [["mixed", 1, 0.5], ["mixed", 4, 0.6], ["random", 1, 0.4]]}
    records = [
        record(start="mixed", **curves),
        record(protocol="merged"),
        record(preset="paper", start="random", test_curve=[[1, 0.5], [4, 0.7]]),
    ]
    text = completion_report(records, tmp_path)
    assert "## full" in text
    assert "## merged" in text
    assert "## sampled50" not in text
    for name in ("hits_by_version", "hits_by_iteration", "validation_against_test"):
        assert f"({name}.png)" in text
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
