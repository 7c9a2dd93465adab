import json
from importlib import resources

import pytest

from sheafprop.ranking import PROTOCOLS
from sheafprop.report.published import published_query_means, published_rows

MARKS = {"paper", "read", "second-hand", "recalled"}
FAMILIES = {"fb237", "WN18RR", "nell"}
KINDS = ("RotatE", "SE", "TransE", "TransR")


@pytest.fixture(scope="module")
def published():
    return json.loads((resources.files("sheafprop.report") / "published.json").read_text("utf-8"))


def test_means_over_all_ratios_are_apart_from_those_of_a_ratio():
    means = published_query_means()
    assert means["UltraQuery, zero-shot"]["without negation"] == {"hits@10": 0.479, "mrr": 0.321}
    assert all(row["ties"] == "ordinal" for row in means.values())
    with pytest.raises(ValueError, match="'protocol' must be one of paper"):
        published_rows("queries", "means_of_nine_ratios", "550")


def test_tables_are_grouped_by_protocol(published):
    assert set(PROTOCOLS) <= set(published["completion"])
    assert set(PROTOCOLS) <= set(published["completion"])
    assert set(published["completion"]) - set(PROTOCOLS) == {"full_valid_and_test"}


def test_every_row_has_a_mark_and_four_versions(published):
    for table in published["completion"].values():
        for name, row in table["rows"].items():
            assert {row.get("mark", row["source"]), row.get("mrr_mark", "read")} <= MARKS, name
            figures = {key: value for key, value in row.items() if isinstance(value, list)}
            assert {key.removeprefix("mrr_") for key in figures} <= FAMILIES
            for key, values in figures.items():
                assert len(values) == 4, (name, key)
                bound = 1 if key.startswith("mrr_") else 100
                assert all(value is None or 0 <= value <= bound for value in values), (name, key)


def test_every_group_names_its_ties_which_are_those_of_its_protocol(published):
    for protocol, table in published["completion"].items():
        if protocol in PROTOCOLS:
            assert table["ties"] in (None, PROTOCOLS[protocol].ties)
    assert published["completion"]["full_valid_and_test"]["ties"] == "realistic"


def test_each_method_stands_under_the_protocol_of_its_run():
    """The code behind the A*Net paper ranks valid + test, that of RED-GNN with realistic ties."""

    def methods(protocol):
        every = [
            published_rows("completion", protocol, f"{family}_v{version}", marks=MARKS)
            for family in FAMILIES
            for version in range(1, 5)
        ]
        assert all(row["protocol"] == protocol for rows in every for row in rows)
        return {row["method"] for rows in every for row in rows}

    assert methods("full") == {f"{m} + harmonic extension" for m in KINDS}
    assert {"NBFNet", "A*Net"} < methods("merged")
    near = {"RED-GNN", "AdaProp", "MoKGR"}
    assert near < methods("full_valid_and_test")
    assert not near & (methods("full") | methods("merged"))
    assert not methods("strict")
    assert "A*Net" not in methods("sampled50") | methods("full_valid_and_test")


def test_figures_known_from_the_paper(published):
    rows = published["completion"]["full"]["rows"]
    assert rows["TransE + harmonic extension"]["fb237"][0] == 50.5
    assert rows["RotatE + harmonic extension"]["WN18RR"][0] == 21.0


def test_rows_of_one_data_set_and_protocol():
    rows = {row["method"]: row for row in published_rows("completion", "full", "fb237_v2")}
    assert rows["TransE + harmonic extension"] == {
        "method": "TransE + harmonic extension",
        "protocol": "full",
        "ties": "realistic",
        "mark": "paper",
        "source": "paper",
        "note": None,
        "hits@10": pytest.approx(0.611),
        "mrr": None,
        "mrr_mark": None,
    }
    (ultra, *_) = published_rows("completion", "merged", "nell_v4")
    assert (ultra["hits@10"], ultra["mrr"]) == (pytest.approx(0.701), 0.49)


def test_marks_are_asked_for():
    every = published_rows("completion", "merged", "fb237_v1", marks=MARKS)
    recalled = published_rows("completion", "merged", "fb237_v1", marks=["recalled"])
    assert {row["method"] for row in recalled} == {"NBFNet", "A*Net"}
    assert len(every) == len(recalled) + len(published_rows("completion", "merged", "fb237_v1"))
    assert all(row["note"] for row in recalled)


def test_hits_and_mrr_are_marked_apart():
    def row(method, *marks):
        rows = [
            row
            for protocol in ("merged", "full_valid_and_test")
            for row in published_rows("completion", protocol, "WN18RR_v4", marks=marks)
        ]
        (found,) = (row for row in rows if row["method"] == method)
        return found["mark"], found["hits@10"], found["mrr"], found["mrr_mark"]

    assert row("RED-GNN", "read") == ("read", pytest.approx(0.721), 0.651, "read")
    assert row("A*Net", "recalled") == ("recalled", pytest.approx(0.743), None, None)
    assert row("A*Net", "second-hand") == ("second-hand", None, 0.661, "second-hand")
    assert row("A*Net", *MARKS) == ("recalled", pytest.approx(0.743), 0.661, "second-hand")


@pytest.mark.parametrize("dataset", ["umls", "fb237_v5", "fb237", "", "other_v1", "nell_v1"])
def test_data_without_published_figures_has_no_rows(dataset):
    assert published_rows("completion", "full", dataset) == []


def test_query_rows():
    rows = {row["method"]: row for row in published_rows("queries", "paper", "106")}
    assert rows["RotatE"]["hits@10"]["2i"] == pytest.approx(0.515)
    assert published_rows("queries", "paper", "107") == []


@pytest.mark.parametrize(
    ("task", "protocol", "message"),
    [("cooking", "full", "task"), ("completion", "metric", "protocol"), ("queries", "full", "pr")],
)
def test_unknown_task_or_protocol(task, protocol, message):
    with pytest.raises(ValueError, match=message):
        published_rows(task, protocol, "fb237_v1")
