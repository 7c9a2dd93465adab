import csv
import io
import random

import pytest

from sheafprop.data.text_rows import BOM, decode, first_row, others, split_rows
from sheafprop.errors import DataError


def by_hand(text):
    """The rows of tab-separated text, with their lines."""
    rows = [(n, line.split("\t")) for n, line in enumerate(text.split("\n"), 1)]
    return [(n, row) for n, row in rows if len(row) > 1 or row[0].strip()]


@pytest.mark.parametrize("seed", range(200))
def test_rows_and_their_lines_are_those_of_a_plain_split(seed):
    rng = random.Random(seed)
    pieces = ["a\tb\tc\n", "x\ty y\t\u2003\n", "\n", "  \n", "\t\t\n", "d\te\tf"]
    text = "".join(rng.choice(pieces[:5]) for _ in range(rng.randrange(6)))
    text += rng.choice(["", pieces[5]])
    expected = by_hand(text)
    assert first_row(text, "s", "\t") == (expected[0] if expected else None)
    for skipped in (0, 1, 3):
        if skipped > text.count("\n"):
            continue
        numbers, rows = split_rows(text, "s", "\t", skipped=skipped)
        wanted = [(n, row) for n, row in expected if n > skipped]
        assert list(zip(numbers, rows.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("delimiter", [",", ";", " "])
def test_quoted_fields_are_those_of_the_csv_module(delimiter):
    rows = [['a"b', "r", "c"], ["line\nbreak", f"x{delimiter}y", "z"], ["d", "", "e"]]
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, lineterminator="\n").writerows(rows)
    text = "\n" + stream.getvalue()
    numbers, got = split_rows(text, "s", delimiter)
    assert got.tolist() == rows
    assert numbers == [2, 3, 5]
    assert first_row(text, "s", delimiter) == (2, rows[0])
    numbers, got = split_rows(text, "s", delimiter, skipped=2)
    assert (numbers, got.tolist()) == ([3, 5], rows[1:])


def test_more_columns_than_three():
    text = "a\tb\tc\td\n\ne\tf\tg\th\n"
    numbers, rows = split_rows(text, "s", "\t", columns=(3, 0, 1))
    assert numbers == [1, 3]
    assert rows.tolist() == [list("abcd"), list("efgh")]


@pytest.mark.parametrize(
    ("text", "delimiter", "message"),
    [
        (
            "a\tb\tc\na b c\n",
            "\t",
            r"line 2: expected 3 tab-separated .* this line has only spaces",
        ),
        ("a\tb\tc\na\n", "\t", "line 2: .*; this line has none"),
        ("a\tb c\n", "\t", "A space may be used instead of a tab"),
        ("a\tb\tc\td\ne\tf\n", "\t", r"line 1: .* Select three columns.* \(1 more such line.\)"),
        ("a,b,c\n\na,b\n", ",", "line 3: expected 3 comma-separated fields"),
        ("a;b;c\na;b\n", ";", "line 2: expected 3 ;-separated fields"),
        ("a;b;c\n", ",", r"separated by ';'\? Give --delimiter ';'"),
        ("a\tb\tc\nNew York|in|b\n", "\t", r"line 2: .* separated by '\|'\? Give --delimiter"),
        ("a\tb\tc\n", ";", r"separated by '\\t'\?"),
        ('a,b,c\n"a,b,c\n', ",", "line 2: a quoted field is not closed"),
        ('a,b,c\nb,"x" y,c\n', ",", "line 2: a quoted field continues after .* Double"),
        ("a,b,c\nrome, italy,in,eu\n", ",", r"line 2: .* that contains ',' must be in quotation"),
    ],
)
def test_the_first_wrong_line_is_named(text, delimiter, message):
    with pytest.raises(DataError, match=message):
        split_rows(text, "s", delimiter)


def test_rows_of_other_widths_are_compared_with_the_first_row_or_the_columns():
    with pytest.raises(DataError, match=r"line 3: .*4 ;-separated fields \(as in the first row\)"):
        split_rows("a;b;c;d\na;b;c;d\na;b;c;d;e\n", "s", ";", columns=(0, 1, 3))
    with pytest.raises(DataError, match=r"line 1: .*5 comma-separated fields \(columns 0,1,4\)"):
        split_rows("a,b,c\n", "s", ",", columns=(0, 1, 4))


def test_bytes_are_decoded_to_lines_that_end_in_lf():
    assert decode(BOM + "é\r\nb\r".encode(), "s") == "é\nb"
    for content, message in (
        ("a".encode("utf-16"), "UTF-16 text"),
        (b"a\nb\xff", "line 2: not UTF-8 text .byte 0xff"),
        (b"a\n\0", "line 2: a NUL character"),
        (b"a\nb\rc", "line 2: a carriage return inside"),
    ):
        with pytest.raises(DataError, match=message):
            decode(content, "s")


def test_others_are_counted_without_the_first():
    assert others(1) == ""
    assert others(5) == " (4 more such lines.)"
