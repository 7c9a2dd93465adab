import pytest
from matplotlib.image import imread

from sheafprop.files import StorageError
from sheafprop.report.derivation_figure import draw_derivations


def anchor(name):
    return {"operator": "anchor", "entity": name, "truth": 1.0, "branches": []}


def via(name, relation, branch, link="fact", probability=1.0):
    return {
        "operator": "via",
        "entity": name,
        "truth": probability,
        "relation": relation,
        "link": link,
        "probability": probability,
        "branches": [branch],
    }


def joined(operator, name, *branches):
    return {"operator": operator, "entity": name, "truth": 0.5, "branches": list(branches)}


TREE = joined(
    "and",
    "$t$",
    via("$t$", "inverse(r)", via("u", "s", anchor("a")), "predicted", 0.25),
    joined("not", "$t$", via("$t$", "q", anchor("b"), "predicted", 0.03)),
)


def test_every_entity_and_link_is_drawn(tmp_path, drawn):
    path = tmp_path / "tree.png"
    draw_derivations([{"answer": "$t$", "truth": 0.6, "derivations": [TREE]}], path)
    assert imread(path).shape[2] == 4
    (axis,) = drawn[0].axes
    texts = [text.get_text() for text in axis.texts]
    assert {"and\n$t$", "not\n$t$", "$t$", "u", "a", "b", "s"} <= set(texts)
    assert "inverse(r)\n0.25" in texts
    assert "q\n0.03" in texts
    dashes = [line.get_linestyle() for line in axis.lines if line.get_marker() == "None"]
    # The fact and the joins of two branches, the prediction, and all that is within the negation.
    assert sorted(dashes) == ["-", "-", "-", "--", ":", ":"]
    assert axis.get_title() == "$t$: truth 0.5"


def test_the_first_of_many_are_drawn(tmp_path, drawn):
    answers = [{"answer": f"e{i}", "truth": 1.0, "derivations": [TREE] * 3} for i in range(3)]
    draw_derivations(answers, tmp_path / "many.png")
    assert len([axis for axis in drawn[0].axes if axis.texts]) == 6
    assert drawn[0].legends[0].get_title().get_text() == "3 more not shown"


def test_no_answer_is_a_picture_too(tmp_path, drawn):
    draw_derivations([], tmp_path / "none.png")
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["no answer"]
    with pytest.raises(StorageError):
        draw_derivations([], tmp_path)
