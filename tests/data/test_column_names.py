"""Which columns are meant: by name, by number, and what is refused rather than guessed."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest

from sheafprop.data import parse_triples
from sheafprop.data.column_names import recognize_columns
from sheafprop.data.triples import frame_triples
from sheafprop.errors import DataError

RELATIONS = ("eats", "hunts", "fears")
ROWS = [(f"x{i}", RELATIONS[i % 3], f"x{(i * 5 + 1) % 11}") for i in range(33)]
USUAL = [
    ("head", "relation", "tail"),
    ("h", "r", "t"),
    ("Subject", "Predicate", "Object"),
    ("s", "p", "o"),
    ("source", "relation", "target"),
    ("#source", "rel", " TARGET"),
]


def text(names, order, sep="\t", extra=()):
    lines = [[*names, *extra], *([*row, *("-" for _ in extra)] for row in ROWS)]
    picked = [[line[i] for i in order] + line[3:] for line in lines]
    return "".join(sep.join(line) + "\n" for line in picked).encode()


@pytest.mark.parametrize("names", USUAL)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_columns_of_usual_names_are_used_by_name(names, order):
    assert parse_triples(text(names, order), "f.tsv").tolist() == list(map(list, ROWS))
    assert parse_triples(text(names, order, ","), "f.csv").tolist() == list(map(list, ROWS))
    frame = pd.DataFrame(
        [[row[i] for i in order] for row in ROWS], columns=[names[i] for i in order]
    )
    assert frame_triples(frame, "frame").tolist() == list(map(list, ROWS))


def test_names_among_other_columns_are_found():
    kgx = text(("subject", "predicate", "object"), (0, 2, 1), extra=("relation", "source_file"))
    assert parse_triples(kgx, "edges.tsv").tolist() == list(map(list, ROWS))
    # Two readings: nothing is guessed.
    both = text(("subject", "predicate", "object"), (0, 1, 2), extra=("head", "tail", "relation"))
    with pytest.raises(DataError, match=r"line 1: expected 3 .* got 6"):
        parse_triples(both, "edges.tsv")
    assert recognize_columns(["head", "head", "relation", "tail"]) is None


@pytest.mark.parametrize(
    ("columns", "header"),
    [
        ("to,kind,from", None),
        (["TO", "kind", "From"], "yes"),
        ("2, 1, 0", "yes"),
        ((2, 1, 0), True),
    ],
)
def test_columns_are_given_by_name_or_by_number(columns, header):
    content = text(("to", "kind", "from"), (2, 1, 0))
    got = parse_triples(content, "f", columns=columns, header=header)
    assert got.tolist() == list(map(list, ROWS))


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    content = text(("a", "kind", "b"), (0, 1, 2))
    with pytest.raises(
        DataError, match=r"line 1: the column 'type' does not exist.*'a', 'kind', 'b'"
    ):
        parse_triples(content, "f", columns="a,type,b")
    with pytest.raises(ValueError, match="'columns' must be numbers if 'header' is 'no'"):
        parse_triples(content, "f", columns="a,kind,b", header="no")


@pytest.mark.parametrize(
    "names",
    [
        ("gene", "edge_kind", "disease"),
        ("vertex1", "link", "vertex2"),
        ("#left", "how", "right"),
        (":FROM_ID", ":KIND", ":TO_ID"),
        ("subject_id", "predicate", "object_id"),
        ("from", "property", "to"),
    ],
)
def test_a_first_line_that_may_be_a_header_is_refused_until_an_option_says_what_it_is(names):
    content, rows = text(names, (0, 1, 2)), list(map(list, ROWS))
    with pytest.raises(DataError, match=r"line 1: this .*\(got .*--header yes.*--header no"):
        parse_triples(content, "f")
    assert parse_triples(content, "f", header="yes").tolist() == rows
    assert parse_triples(content, "f", header="no").tolist() == [list(names), *rows]
    assert parse_triples(content, "f", columns=",".join(names)).tolist() == rows
    # What is known from elsewhere is no header, unless all its fields are words of headers.
    if names[1] not in ("property", "predicate"):
        known = {names[1]}
        assert parse_triples(content, "f", known=known).tolist() == [list(names), *rows]


def test_a_few_facts_of_different_things_are_read_with_a_warning():
    content = b"a\tlikes\tb\nc\towns\td\n"
    with pytest.warns(UserWarning, match="line 1: this row occurs nowhere else"):
        assert len(parse_triples(content, "f")) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(parse_triples(content, "f", header=False)) == 2
        assert len(parse_triples(b"a\tlikes\tb\n", "f")) == 1


def test_names_that_are_labels_too():
    short = b"h\tr\tt\nt\tr\th\n"
    assert parse_triples(short, "f").tolist() == [["h", "r", "t"], ["t", "r", "h"]]
    words = b"head\trelation\ttail\ntail\tpart_of\tdog\n"
    with pytest.raises(DataError, match=r"line 1: .*these labels also occur below"):
        parse_triples(words, "f")
    assert len(parse_triples(words, "f", header=True)) == 1
    assert len(parse_triples(words, "f", header=False)) == 2


@pytest.mark.parametrize(("order", "right"), [((1, 0, 2), "1,0,2"), ((0, 2, 1), "0,2,1")])
@pytest.mark.parametrize("kind", ["text", "frame"])
def test_swapped_columns_are_refused_and_the_order_is_named(order, right, kind):
    rows = [[row[i] for i in order] for row in ROWS]

    def read(**options):
        if kind == "text":
            lines = "".join("\t".join(row) + "\n" for row in rows)
            return parse_triples(lines.encode(), "f", **options).tolist()
        return frame_triples(pd.DataFrame(rows), "f", **options).tolist()

    with pytest.raises(DataError, match=rf"11 of the (11|33) relation .*--columns {right} "):
        read()
    assert read(columns=right) == list(map(list, ROWS))
    assert read(columns=(0, 1, 2)) == rows


def test_a_relation_that_is_an_entity_too_is_no_sign():
    rows = [*ROWS, ("eats", "is_a", "verb")]
    content = "".join("\t".join(row) + "\n" for row in rows).encode()
    assert len(parse_triples(content, "f")) == 34


def test_numbers_are_entities_and_relations_at_once():
    random = np.random.default_rng(0)
    rows = np.stack([random.integers(40, size=300) % n for n in (40, 4, 40)], axis=1)
    content = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_triples(content.encode(), "f").shape == (300, 3)
    swapped = "".join("\t".join(map(str, row[[0, 2, 1]])) + "\n" for row in rows)
    with pytest.warns(UserWarning, match=r"more relations \(40\) than .*--columns 0,2,1"):
        parse_triples(swapped.encode(), "f")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "0,1"}, "three different columns"),
        ({"columns": "a,,b"}, "three different columns"),
        ({"columns": "a,b,a"}, "three different columns"),
        ({"header": "maybe"}, "'header' must be one of"),
        ({"format": "xlsx"}, "'format' must be one of"),
        ({"delimiter": ""}, "single character"),
    ],
)
def test_options_that_make_no_sense_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        parse_triples(b"a\tr\tb\n", "f", **options)
