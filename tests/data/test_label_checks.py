"""Labels that look alike, and relations that are entities."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafprop.data import Vocabulary, as_label_triples, assemble
from sheafprop.data.label_checks import advise_on_order, fold, format_lookalikes, lookalikes
from sheafprop.errors import UnknownRelationError

PAIRS = [
    ("blood vessel", "blood\u200bvessel".replace("\u200b", " \u200b")),
    ("virus", "vir\u00adus"),
    ("virus", "\u2060virus"),
    ("virus", "virus\u200f"),
    ("virus", "vi\ufeffrus"),
    ("caf\u00e9", "cafe\u0301"),
    ("\u212bngstrom", "\u00e5ngstrom"),
    ("virus", "virus "),
    ("virus", "\u00a0virus"),
    ("virus", "VIRUS"),
    ("stra\u00dfe", "STRASSE"),
    ("virus", "\uff56irus"),
]


@pytest.mark.parametrize(("label", "other"), PAIRS)
def test_lookalikes_are_found(label, other):
    assert lookalikes([label, "x", other]) == {other: label}
    assert lookalikes([label, other], 1) == {other: label}
    assert "did you mean" in Vocabulary([label]).suggestion(other)


@pytest.mark.parametrize(
    ("label", "other"),
    [("1.0", "1"), ("007", "7"), ("7", "007"), ("+2.50", "2.5"), ("-0.0", "-0"), ("00", "0.")],
)
def test_decimal_numbers_of_one_value_look_alike(label, other):
    near = lookalikes([other, "x", label])
    assert near == {label: other}
    assert "hidden characters, or are equal as numbers: 1 (" in format_lookalikes("e", near)
    assert fold(label) != fold(other)


@pytest.mark.parametrize("label", ["virus2", "viruss", "vi-rus", "\u00fc", "1.1", "-1", ""])
def test_other_labels_are_none(label):
    assert lookalikes(["virus", "u", "1", label]) == {}


@given(st.text())
def test_folding_twice_is_folding_once(label):
    assert fold(fold(label)) == fold(label)
    assert fold(label + "\u200b") == fold(f" {label} ") == fold(label)


RING = [(f"a{i}", "next", f"a{(i + 1) % 9}") for i in range(9)]


@pytest.mark.parametrize("part", ["observed", "valid", "test"])
@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_data_sets_report_lookalikes(mode, part):
    parts = {"observed": [("new", "next", "a1"), ("new", "next", "b")], "valid": [], "test": []}
    parts[part] = [*parts[part], ("new\u200b", "next", "a1 ")]
    notes = " ".join(assemble("toy", mode, train=RING, **parts).report["notes"])
    found = ["'new\\u200b' and 'new'"] + ["'a1 ' and 'a1'"] * (mode == "semi-inductive")
    assert all(pair in notes for pair in found)
    plain = assemble("toy", mode, train=RING, observed=[("new", "next", "a1")])
    assert not any("differ from another" in note for note in plain.report["notes"])


def test_training_and_relations_are_compared_too():
    train = [*RING, ("A3", "next", "a4"), ("a3", "next ", "a5")]
    data = assemble("toy", "semi-inductive", train=train, observed=[("n", "next", "a1")])
    notes = " ".join(data.report["notes"])
    assert "entities that differ from another" in notes
    assert "'A3' and 'a3'" in notes
    assert "'next ' and 'next'" in notes


def test_unknown_relations_that_are_entities_point_to_the_columns():
    with pytest.raises(UnknownRelationError, match=r"1 known relation.*--columns 0,2,1") as caught:
        assemble("toy", "semi-inductive", train=RING, observed=[("n", "a3", "next")])
    assert "drop" not in str(caught.value)


KNOWN = ["bread", "flour"], ["made_of", "eaten_by"]


@pytest.mark.parametrize(
    ("rows", "advice"),
    [
        ([("made_of", "cake", "sugar"), ("eaten_by", "pie", "salt")], "--columns 1,0,2 for that"),
        ([("cake", "sugar", "made_of"), ("pie", "salt", "eaten_by")], "--columns 0,2,1 for that"),
        ([("x", "flour", "y"), ("x", "bread", "z")], "known as entities, so"),
        ([("bread", "made_from", "flour"), ("flour", "is_in", "bread")], "^Drop these$"),
        ([("q", "u", "v"), ("w", "x", "y")], "other order, give .*Otherwise drop these"),
        ([("q", "made_of", "v"), ("w", "x", "y")], "^Drop these$"),
        ([("q", "Made_of", "v"), ("w", "eaten_by ", "y")], "case, white space.*them. Drop these$"),
    ],
)
def test_the_order_of_columns_is_named_where_labels_show_it(rows, advice):
    triples = as_label_triples(rows)
    entities, relations = map(set, KNOWN)
    assert re.search(advice, advise_on_order(triples, entities, relations, "Drop these"))
    without = advise_on_order(triples, entities, relations)
    assert "rop these" not in without
    assert bool(without) is (advice != "^Drop these$")
