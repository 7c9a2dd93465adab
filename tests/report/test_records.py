import json

import pytest

from sheafprop.errors import FormatError
from sheafprop.report.records import (
    alike,
    by_dataset,
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
