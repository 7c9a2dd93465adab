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
    return {"search": given, "episodes": episodes, "chosen": chosen, "curve": list(curve)} | more


CURVE = [{"weight": 0.2, "mrr": 0.5}, {"weight": 0.4, "mrr": 0.45}, {"share": 0.1, "mrr": 0.7}]


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            proximity({"share": "auto"}, {"share": 0.1}, CURVE[2:]),
            "proximity: share 0.1, selected on the same triples among 1 setting (mrr 0.700)",
        ),
        (
            proximity(
                {"weight": "auto", "share": "auto"}, {"weight": 0.2, "share": 0.1}, CURVE, True
            ),
            "proximity: weight 0.2, share 0.1, selected on the same triples among 3 settings (mrr "
            "0.500)",
        ),
        # Without episodes, no score has the weight.
        (
            proximity({"weight": "auto", "peers": "auto"}, {"weight": 0.3, "peers": 0.0}),
            "proximity: peers 0, the defaults",
        ),
        (
            proximity({"share": "auto"}, {"share": 0.0}, note="it is large"),
            "proximity: share 0 (it is large)",
        ),
        (proximity({"share": "auto"}, None, note="left out"), "proximity: left out"),
    ],
)
def test_selected_weights_of_proximity_are_described(found, sentence):
    assert describe_proximity(found, "mrr") == sentence


def test_a_selection_of_proximity_without_its_parts_is_no_record(tmp_path):
    path = tmp_path / "metrics.json"
    run = record()
    run["selection"]["proximity"] = {"chosen": None}
    path.write_text(json.dumps(run), encoding="utf-8")
    with pytest.raises(FormatError, match="'proximity' in 'selection' lacks 'search'"):
        read_record(path)
