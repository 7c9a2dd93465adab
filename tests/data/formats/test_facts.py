"""Facts as they are collected."""

import warnings

import pytest

from sheafprop.data.formats.facts import Facts
from sheafprop.data.formats.prefixes import Prefixes


def collect():
    facts = Facts("f.nt", "N-Triples", Prefixes.of())
    for place, (head, tail) in enumerate([("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")], 3):
        facts.add(head, "r", tail, place)
    return facts


def test_facts_have_their_places_and_nothing_is_said_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = collect().rows("line")
    assert rows.rows.tolist()[1] == ["b", "r", "c"]
    assert [rows.place(row) for row in (0, 3)] == ["f.nt, line 3", "f.nt, line 6"]


def test_facts_of_obsolete_terms_are_left_out_and_counted():
    facts = collect()
    facts.obsolete.add("b")
    facts.add_literal("a", "name", "A")
    with pytest.warns(
        UserWarning, match=r"skipped: literals \(1\), facts of obsolete terms \(2\)$"
    ):
        rows = facts.rows("line")
    assert rows.rows.tolist() == [["c", "r", "a"], ["a", "r", "c"]]
    assert [rows.place(row) for row in (0, 1)] == ["f.nt, line 5", "f.nt, line 6"]


def test_a_label_is_one_object():
    facts = Facts("f.nt", "N-Triples", Prefixes.of())
    iri = "http://www.wikidata.org/entity/Q"
    assert facts.name(iri + "1") is facts.name("".join([iri, "1"]))
    assert facts.intern("x1") is facts.intern("".join(["x", "1"]))
