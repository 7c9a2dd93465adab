import json

from sheafprop.pretrained.reports import ExtensionReport, RemovalReport
from tests.pretrained.models import ADRIFT, FACTS, sheaf_model


def test_reports_hold_plain_values_alone():
    grown = sheaf_model("rotate").extend(FACTS + ADRIFT)
    smaller = grown.remove("n2")
    for kind, report in ((ExtensionReport, grown.report), (RemovalReport, smaller.report)):
        again = kind(**json.loads(json.dumps(report.to_dict())))
        assert again == report
        assert again.summary() == report.summary()


def test_an_extension_in_words():
    text = sheaf_model("transe").extend(FACTS + ADRIFT).report.summary().split("\n")
    assert (
        text[0]
        == "5 new entities from 12 facts, which name 6 entities that the model knows by label"
    )
    assert text[1].startswith("3 vectors are the exact solution (relative residual ")
    assert "2 vectors were propagated for a finite time (5 steps, seed 0)" in "\n".join(text)
    assert "unanchored: 'm0', 'm1'" in text
    assert text[-2:] == [
        "1 fact repeats an earlier one of the input; a fact counts once",
        "1 fact moves no vector",
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
    assert lost[1] == (
        "1 entity of earlier extensions lost a fact and kept its vector; mode='refine' solves again"
    )
    again = model.remove("n1", mode="refine").report.summary().split("\n")
    assert again[1] == "solved again: 1 entity"
