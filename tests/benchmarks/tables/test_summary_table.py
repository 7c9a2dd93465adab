import pytest
from benchmarks.tables.summary_table import summary_table

from sheafprop.query import CONJUNCTIVE
from sheafprop.report.tables import NOTHING

MODEL = "rotate + episodes + proximity"


def rows(text):
    header, _, *lines = (
        [c.strip() for c in line.strip("|").split("|")] for line in text.split("\n")
    )
    return [dict(zip(header, line, strict=True)) for line in lines]


def completion(dataset, hits, seed=0, protocol="full", preset="episodes", model=MODEL, **more):
    record = {"dataset": dataset, "hits@10": hits, "seed": seed, "protocol": protocol}
    return record | {"preset": preset, "model": model} | more


def query(ratio, hits, averaging="macro", preset="best"):
    record = {"ratio": ratio, "model": "rotate", "preset": preset, "seed": 0, "config_hash": "a"}
    record |= {"averaging": averaging, "hits@10": hits}
    return [record | {"type": kind} for kind in CONJUNCTIVE]


def test_completion_is_the_mean_over_seeds_by_protocol():
    records = [
        completion("fb237_v1", 0.6), completion("fb237_v1", 0.7, seed=1),
        completion("fb237_v2", 0.5), completion("fb237_v2", 0.1, protocol="merged"),
        completion("fb237_v2", 0.9, protocol="merged", mark="selected on half of the test"),
        completion("fb237_v3", 0.8, preset="paper"),
    ]  # fmt: skip
    full, merged = rows(summary_table({"completion": records}))
    assert (full["protocol"], full["figure"]) == ("full", f"65.0, 50.0, {NOTHING}, {NOTHING}")
    assert merged["figure"] == f"{NOTHING}, 10.0, {NOTHING}, {NOTHING}"
    # The published method with the best mean, of the same protocol.
    assert full["best published under the same protocol"].startswith(
        "TransE + harmonic extension: "
    )
    assert merged["best published under the same protocol"].startswith("TRIX, zero-shot: 68.3, ")


def test_queries_are_those_of_both_ends_and_of_one_averaging():
    records = query("106", 0.4) + query("300", 0.9) + query("550", 0.2)
    records += query("550", 0.8, averaging="micro") + query("550", 0.7, preset="paper")
    macro, micro = rows(summary_table({"queries": records}))
    assert macro["task"] == "logical queries, FB15k-237, ratios 106 and 550"
    assert macro["figure"] == "40.0, 20.0"
    assert macro["best published under the same protocol"] == "NodePiece-QE w/ GNN: 33.7, 11.9"
    assert micro["figure"] == f"{NOTHING}, 80.0"
    assert micro["protocol"].endswith("micro")


def over_entities(ratio, types, hits, **more):
    record = {"ratio": ratio, "method": "entities", "averaging": "macro", "limit": 500}
    return [record | {"type": kind, "hits@10": hits} | more for kind in types]


def test_queries_over_entities_are_the_mean_of_all_ratios():
    types, negation = (*CONJUNCTIVE, "2u", "up"), ("2in", "3in", "inp", "pin", "pni")
    records = over_entities("106", types, 0.6) + over_entities("550", types, 0.3)
    records += over_entities("106", types, 0.9, averaging="micro")
    records += over_entities("106", types, 0.8, method="energy")
    records += over_entities("106", negation, 0.25)  # of one ratio of two: no mean
    (row,) = rows(summary_table({"query_entities": records}))
    assert row["task"] == "logical queries without negation, FB15k-237, mean of 2 ratios"
    assert row["protocol"].endswith("macro, 500 queries per type")
    assert row["figure"] == "45.0"
    assert row["best published under the same protocol"].startswith("UltraQuery, zero-shot: 47.9")
    assert row["method"] == "RotatE, best (entity interiors)"
    # Where not all ratios have settings of their own, those that have one setting.
    name = "entities, one setting for all ratios"
    for ratio, hits in (("106", 0.6), ("550", 0.3), ("300", 0.0)):
        records += over_entities(ratio, types, hits, method=name, limit=700)
    (row,) = rows(summary_table({"query_entities": records}))
    assert row["task"].endswith("mean of 3 ratios")
    assert row["method"] == "RotatE, best (entity interiors, one setting for all ratios)"
    assert row["protocol"].endswith("macro, 700 queries per type")
    assert row["figure"] == "30.0"


def test_speed_says_how_it_was_measured():
    step = {"name": "power law, 9 entities, identity, width 8", "maps": "identity", "width": 8}
    step |= {"triples": 3000, "ratio_scatter": 12.34, "threads": 2, "runs": 5}
    training = [{"ratio_epoch": 3.0, "ratio_ranking": 9.0, "threads": 1, "runs": 1}]
    training.append({"ratio_epoch": 5.5, "ratio_ranking": 8.0, "threads": 1, "runs": 1})
    service = [
        {"extend_seconds": t, "entities": 1000, "threads": 2, "runs": 2} for t in (0.01, 0.5)
    ]
    files = {"propagation": [step], "training": training, "service": service}
    first, epoch, ranking, extend = rows(summary_table(files))
    assert first["figure"] == "12.3x faster"
    assert first["protocol"] == "2 threads, median of 5 runs"
    assert epoch["figure"] == "3.0x to 5.5x faster"
    assert epoch["protocol"] == "1 thread, one run"
    assert ranking["figure"] == "8.0x to 9.0x faster"
    assert extend["figure"] == "10 to 500 ms"


@pytest.mark.parametrize("files", [{}, {"completion": [], "queries": []}])
def test_nothing_stored_gives_no_row(files):
    assert rows(summary_table(files)) == []
