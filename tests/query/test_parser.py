import numpy as np
import pytest

from sheafprop.errors import DataError
from sheafprop.query import STRUCTURES, Query, parse_query
from tests.query.trees import random_shape

LABELS = [
    "a",
    "/m/0abc",
    "O'Neil",
    "two words",
    "C:\\new folder\\",
    "a,b",
    "f(x)",
    'say "so"',
    "'q",
    "\\",
    "and",
    ";",
    "é",
]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("via(r, a)", Query.entity("a").via("r")),
        (" via( r ,a ) ", Query.entity("a").via("r")),
        ("via(inverse(r), a)", Query.entity("a").via("r", inverse=True)),
        ("via(and, or)", Query.entity("or").via("and")),
        ("via(\"r s\", 'it, (s)')", Query.entity("it, (s)").via("r s")),
        (r'via(r, "a \" \\ b")', Query.entity('a " \\ b').via("r")),
        (
            "and(via(r, a), and(via(s, b), via(t, c)))",
            Query.entity("a").via("r") & Query.entity("b").via("s") & Query.entity("c").via("t"),
        ),
        (
            "via(t, or(via(r, a), via(s, b)))",
            (Query.entity("a").via("r") | Query.entity("b").via("s")).via("t"),
        ),
        ("2p(r, s; a)", Query.entity("a").via("r").via("s")),
        (
            "pi(r, inverse(s), t; a, b)",
            Query.entity("a").via("r").via("s", inverse=True) & Query.entity("b").via("t"),
        ),
        (
            "ip(r, s, t; a, b)",
            (Query.entity("a").via("r") & Query.entity("b").via("s")).via("t"),
        ),
        ("up(r, s, t; a, b)", Query.of("up", ["r", "s", "t"], ["a", "b"])),
        ("3i(r, r, r; a, b, c)", Query.of("3i", ["r", "r", "r"], ["a", "b", "c"])),
    ],
)
def test_text_means_the_query(text, meaning):
    assert parse_query(text) == meaning


def test_every_query_is_read_back_from_its_text():
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = random_shape(rng, 5, union=True)
        labels = tuple(str(rng.choice(LABELS)) for _ in shape.slot_kinds)
        inverse = tuple(kind == "relation" and bool(rng.integers(2)) for kind in shape.slot_kinds)
        query = Query(shape, labels, inverse)
        again = parse_query(str(query))
        # Nested operators of one kind are merged, which neither slots nor meaning see.
        assert (again.labels, again.inverse) == (query.labels, query.inverse)
        assert parse_query(str(again)) == again
        assert [slots for _, slots in again.shape.conjunctions()] == [
            slots for _, slots in query.shape.conjunctions()
        ]


def test_many_branches_are_not_nested():
    query = parse_query("or(" + ", ".join(["via(r, a)"] * 150) + ")")
    assert len(query.shape.branches) == 150


def test_negation():
    query = Query.entity("a").via("r") & ~Query.entity("b").via("s", inverse=True)
    assert str(query) == "and(via(r, a), not(via(inverse(s), b)))"
    assert parse_query(str(query)) == query
    for name, shape in STRUCTURES.items():
        slots = [kind[0] + str(i) for i, kind in enumerate(shape.slot_kinds)]
        relations = [slots[i] for i in shape.relation_slots]
        anchors = [slots[i] for i in shape.entity_slots]
        named = parse_query(f"{name}({', '.join(relations)}; {', '.join(anchors)})")
        assert named == Query.of(name, relations, anchors) == parse_query(str(named))
    twice = parse_query("not(not(via(r, a)))")
    assert twice == ~~Query.entity("a").via("r")


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 1, "expected an entity or a query .got the end"),
        ("via(r, a", 9, r"expected '\)'"),
        ("via(r a)", 7, "expected ',' between relation and query"),
        ("via(r, a))", 10, "more follows"),
        ("via(via(r, a), b)", 5, "a relation is a label or inverse"),
        ("via(inverse(inverse(r)), b)", 13, r"inverse\(...\) takes the label of a relation"),
        ("and(via(r, a))", 1, "at least two"),
        ("and(via(r, a), not(via(s, b), c))", 29, r"expected '\)' after not\(query"),
        ("2in(r; a, b)", 1, "'2in' takes 2 relations and 2 entities"),
        ("inverse(r)", 1, "stands for a relation"),
        ("4p(r; a)", 1, "'4p' is not an operator; expected one of via, and, or, not, 1p"),
        ("2p(r; a)", 1, "'2p' takes 2 relations and 1 entities .got 1 and 1"),
        ("2p(r, s, a)", 11, "expected ';'"),
        ('via(r, "a)', 8, "quotation mark is not closed"),
        ("via('', a)", 5, "a label is empty"),
        ("via(, a)", 5, "expected a relation"),
        ("via(r, " * 200 + "a" + ")" * 200, 701, "nested 100 deep at most"),
    ],
)
def test_errors_name_the_position(text, position, problem):
    with pytest.raises(DataError, match=rf"query, position {position}: .*{problem}"):
        parse_query(text)


@pytest.mark.parametrize(
    "text",
    [
        "via(treats, Doe, Jane)",
        "and(via(r, Doe, Jane), b)",
        "via(treats, Doe (Jane))",
        "via(is part of, a)",
        "Doe; Jane",
    ],
)
def test_labels_that_need_quotation_marks_are_pointed_out(text):
    with pytest.raises(DataError, match=r'in quotation marks, as in via\(treats, "Smith, John"\)'):
        parse_query(text)


def test_what_no_quotation_marks_would_mend_gets_no_such_advice():
    for text in ("via(treats, a", "via(treats)", 'via(treats, "a" b)', "and(a)"):
        with pytest.raises(DataError) as caught:
            parse_query(text)
        assert "Smith" not in str(caught.value), text
