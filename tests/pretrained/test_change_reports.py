import json
import pickle

from sheafprop.pretrained.change_reports import ExtensionReport, RemovalReport
from tests.pretrained.models import ADRIFT, FACTS, sheaf_model


def test_reports_hold_plain_values_alone():
    grown = sheaf_model("rotate").extend(FACTS + ADRIFT)
    smaller = grown.remove("n2")
    for kind, report in ((ExtensionReport, grown.report), (RemovalReport, smaller.report)):
        values = report.to_dict()
        assert json.loads(json.dumps(values)) == values
        values.pop("lookalikes", None)
        assert kind(**values) == report


def test_an_extension_reports_labels_that_look_alike():
    model = sheaf_model("rotate")
    hidden, soft = "a\u200b3", "n\u00ad1"
    labels = [hidden, "n1", soft, "a 4", "a5"]
    report = model.extend([(label, "next", "a2") for label in labels]).report
    assert report.lookalikes == report.to_dict()["lookalikes"] == {hidden: "a3", soft: "n1"}
    assert f"characters: 2 ({hidden!r} and 'a3', {soft!r} and 'n1')" in report.summary()
    again = pickle.loads(pickle.dumps(report))
    assert again.lookalikes == report.lookalikes
    assert model.extend(FACTS).report.lookalikes == {}


def test_an_extension_in_words():
    text = sheaf_model("transe").extend(FACTS + ADRIFT).report.summary().split("\n")
    assert text[0] == "5 new entities from 12 facts, which contain 6 known entities"
    assert text[1].startswith("3 vectors are the exact solution (relative residual ")
    assert "2 vectors were propagated for a finite time (5 steps, seed 0)" in "\n".join(text)
    assert "unanchored: 'm0', 'm1'" in text
    assert text[-2:] == [
        "1 fact repeats an earlier one of the input and is ignored",
        "1 fact changes no vector",
    ]


def test_long_lists_of_labels_are_cut():
    many = [(f"m{i}", "next", f"m{i + 1}") for i in range(8)]
    text = sheaf_model("transe").extend(many).report.summary()
    assert "unanchored: 'm0', 'm1', 'm2', 'm3', 'm4' and 4 more" in text


def test_a_removal_in_words():
    model = sheaf_model("rotate").extend(FACTS)
    kept, solved = (model.remove("n2", mode=mode).report for mode in ("keep", "refine"))
    assert kept.summary() == "1 entity removed, with 3 facts"
    assert solved.summary() == kept.summary()
    lost = model.remove("n1").report.summary().split("\n")
    assert lost[1:] == [
        "1 entity of earlier extensions lost a fact and kept its vector (remove with "
        "mode='refine', --mode refine, to recompute): 'n0'"
    ]
    again = model.remove("n1", mode="refine").report.summary().split("\n")
    assert again[1:] == ["recomputed: 'n0'"]
