import json

import pytest

from sheafprop.errors import FormatError
from sheafprop.report.records import (
    alike,
    by_dataset,
    describe_proximity,
    metric_key,
    protocol_order,
    read_record,
    tie_conventions,
)
from tests.report.records import record


def test_a_record_is_read_back_and_named_after_its_folder(tmp_path):
    stored = record()
    del stored["run"]["name"]
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(stored))
    found = read_record(path)
    assert found["run"].pop("name") == tmp_path.name
    assert found == stored
    path.write_text(json.dumps(stored).replace("0.36", "NaN"))
    with pytest.raises(FormatError, match="NaN is never a score"):
        read_record(path)


def test_records_are_grouped_in_their_order():
    first, second = record("a"), record("b", dataset="other")
    third = record("c")
    groups = by_dataset([first, second, third])
    assert groups == {"umls (semi-inductive)": [first, third], "other (semi-inductive)": [second]}
    values = [{"box": 1}, {"box": 2}, {"box": 1}]
    assert list(alike(values, "box")) == [([values[0], values[2]], 1), ([values[1]], 2)]


def test_protocols_name_their_metrics_ties_and_place():
    assert metric_key("mrr", "full") == "mrr"
    assert metric_key("mrr", "sampled50") != "mrr"
    assert metric_key("mrr", "unheard of") == "mrr"
    assert protocol_order("full") < protocol_order("unheard of")
    names = tie_conventions("full")
    assert set(names) == {"", "expected_"}
    assert names["expected_"].endswith("(expectation over ties)")


def proximity(search, chosen, curve=(), episodes=False, **more):
    given = {"weight": 0.3, "share": 0.4, "peers": 0.0} | search
    found = {"search": given, "episodes": episodes, "chosen": chosen, "curve": list(curve)}
    return found | {"on": "validation", "count": 50} | more


CURVE = [{"weight": 0.2, "mrr": 0.5}, {"weight": 0.4, "mrr": 0.45}, {"share": 0.1, "mrr": 0.7}]
FREQUENCIES = [
    {"share": 0.1, "frequency": 0.0, "mrr": 0.7},
    {"share": 0.1, "frequency": 0.2, "mrr": 0.8},
]
WITH_FREQUENCY = (
    {"share": "auto", "frequency": "auto", "teleport": "auto"},
    {"share": 0.1, "frequency": 0.2, "teleport": 0.4},
)
WITH_WEIGHT = {"weight": "auto", "share": "auto"}, {"weight": 0.2, "share": 0.1}


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            proximity({"share": "auto"}, {"share": 0.1}, CURVE[2:]),
            "share 0.1, selected on 50 validation triples among 1 setting (mrr 0.700)",
        ),
        (
            proximity(*WITH_WEIGHT, CURVE, True, on="training graph", count=1),
            "weight 0.2, share 0.1, selected on 1 validation triple of the training graph among 3 "
            "settings (mrr 0.500)",
        ),
        (
            proximity({"share": "auto"}, {"share": 0.1}, CURVE[2:], True),
            "share 0.1, selected on 50 validation triples among 1 setting (mrr 0.700)",
        ),
        (
            proximity({"share": "auto"}, {"share": 0.7}, CURVE[2:]),
            "share 0.7, selected on 50 validation triples among 1 setting",
        ),
        (
            proximity({"weight": "auto"}, {"weight": 0.4, "share": 0.4}, CURVE[:2], True),
            "weight 0.4, selected on 50 validation triples among 2 settings (mrr 0.450)",
        ),
        # Without episodes, no score has the weight.
        (proximity({"weight": "auto"}, {"weight": 0.3}), None),
        (proximity({"weight": "auto"}, {"weight": 0.3}, on="defaults", count=0), None),
        (proximity({"weight": "auto"}, {"weight": 0.3}, note="it is large"), None),
        # Peers of no proximity: there was nothing to try.
        (proximity({"share": 0.0, "peers": "auto"}, {"peers": 0.0}), None),
        (
            proximity({"peers": "auto"}, {"peers": 0.0}, on="defaults", count=0),
            "peers 0, the defaults, as there are no triples to select on",
        ),
        (
            proximity({"share": "auto"}, {"share": 0.0}, note="it is large"),
            "share 0 (it is large)",
        ),
        (proximity({"share": "auto"}, None, note="it is large"), "it is large"),
        (
            proximity(*WITH_FREQUENCY, FREQUENCIES),
            "share 0.1, frequency 0.2, teleport 0.4, selected on 50 validation triples among 2 "
            "settings (mrr 0.800)",
        ),
        # The score of episodes has no such weight, but the rows of propagated vectors do.
        (
            proximity({"frequency": "auto"}, {"frequency": 0.2}, FREQUENCIES, True),
            "frequency 0.2, selected on 50 validation triples among 2 settings (mrr 0.800)",
        ),
    ],
)
def test_selected_weights_of_proximity_are_described(found, sentence):
    expected = None if sentence is None else f"proximity: {sentence}"
    assert describe_proximity(found, "mrr") == expected


@pytest.mark.parametrize("name", ["search", "episodes", "on", "count", "chosen", "curve"])
def test_a_selection_of_proximity_without_its_parts_is_no_record(tmp_path, name):
    path = tmp_path / "metrics.json"
    run = record()
    run["selection"]["proximity"] = proximity({"share": "auto"}, {"share": 0.1})
    path.write_text(json.dumps(run), encoding="utf-8")
    assert read_record(path)["selection"]["proximity"]["count"] == 50
    del run["selection"]["proximity"][name]
    path.write_text(json.dumps(run), encoding="utf-8")
    with pytest.raises(FormatError, match=f"'proximity' in 'selection' lacks '{name}'"):
        read_record(path)
