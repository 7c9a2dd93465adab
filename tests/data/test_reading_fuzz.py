"""Readers under arbitrary input: the right triples, or an error that names file and line."""

import bz2
import csv
import gzip
import io
import lzma
import re
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sheafprop.data import parse_triples
from sheafprop.errors import DataError

#: Characters that mean something to some reader, and some that do not.
CHARACTERS = st.sampled_from(
    [*'abrhst.<>"#:,;?{[@_ \t\t\t\n\n', "\r\n", "\ufeff", "\u200b", "\u00e9", "é"]
)
TEXT = st.lists(CHARACTERS, max_size=60).map("".join)
LABEL = st.text(st.sampled_from([*"abrhst.<>\"#:,;'{ ", "\u200b", "\u00e9", "\u2028"]), min_size=1)
NAMES = st.sampled_from(["head", "relation", "tail", "h", "r", "t", "source", "x", "subject"])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "columns": st.sampled_from([(0, 1, 2), (2, 1, 0), "0,1,3", "h,r,t", "head,relation,tail"]),
        "header": st.sampled_from(["yes", "no", "auto"]),
        "delimiter": st.sampled_from([",", ";", "\\t"]),
        "format": st.sampled_from(["tsv", "csv", "auto"]),
    },
)
PACKED = [lambda b: b, gzip.compress, bz2.compress, lzma.compress]


def read(content, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parse_triples(content, "file.txt", **options)


def read_or_error(content, **options):
    """The triples, or the message of the error."""
    try:
        return read(content, **options).tolist()
    except ValueError as error:  # of which DataError is one
        return str(error)


def plain_rows(text):
    """What tab-separated text holds, by the simplest reading there is."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return [line.split("\t") for line in lines if line.strip() or "\t" in line]


@settings(max_examples=300)
@given(TEXT, OPTIONS, st.sampled_from(PACKED))
@example("h\tr\tt\nx\ty\tz\n", {}, PACKED[0])
@example("<a>\t<b>\t<c>.\n", {}, PACKED[0])
def test_any_text_gives_its_rows_or_an_error_with_the_file(text, options, pack):
    got = read_or_error(pack(text.encode()), **options)
    if isinstance(got, str):
        # Whatever is wrong in a line comes with its number.
        known = r"file\.txt(, line \d+: |: | has \d)|'columns' must be numbers"
        assert re.match(known, got), got
        return
    assert all(label for row in got for label in row)
    if options.get("delimiter", "\\t") != "\\t" or options.get("format") == "csv":
        return
    rows = plain_rows(text)
    assert len(rows) - len(got) in (0, 1), "no row is lost but a header"
    columns = options.get("columns")
    if columns is None and all(len(row) == 3 for row in rows) and len(rows) == len(got):
        assert got == rows
    elif columns in ((0, 1, 2), (2, 1, 0)):
        assert got == [[row[c] for c in columns] for row in rows[len(rows) - len(got) :]]


@settings(max_examples=200)
@given(
    st.lists(st.tuples(LABEL, LABEL, LABEL), min_size=1, max_size=8),
    st.permutations(["head", "relation", "tail"]),
    st.sampled_from([("\t", "tsv"), (",", "csv"), (";", "csv")]),
    st.sampled_from(PACKED),
    st.booleans(),
)
def test_triples_under_a_header_come_back_in_any_order(rows, order, kind, pack, crlf):
    delimiter, format = kind
    places = [["head", "relation", "tail"].index(name) for name in order]
    if format == "csv":
        stream = io.StringIO()
        writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
        writer.writerows([order, *([row[i] for i in places] for row in rows)])
        text = stream.getvalue()
    else:
        lines = [order, *([row[i] for i in places] for row in rows)]
        text = "".join("\t".join(line) + "\n" for line in lines)
    content = pack((text.replace("\n", "\r\n") if crlf else text).encode())
    got = read(content, format=format, delimiter=delimiter, header="yes")
    assert got.tolist() == [list(row) for row in rows]
    assert (
        read(content, format=format, delimiter=delimiter, columns="head,relation,tail").tolist()
        == got.tolist()
    )


@settings(max_examples=200)
@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=5))
def test_labels_that_are_words_of_headers_are_never_lost(rows):
    """Either all rows are triples, or the first was a header of other words than the rest."""
    text = "".join("\t".join(row) + "\n" for row in rows)
    got = read_or_error(text.encode())
    if isinstance(got, str):
        assert re.match(r"file\.txt(, line 1)?: ", got)
        return
    if len(got) < len(rows):
        labels = {label for row in rows[1:] for label in row}
        assert len(got) == len(rows) - 1
        assert len(set(rows[0])) == 3
        assert labels.isdisjoint(rows[0])
        assert set(rows[0]) in ({"head", "relation", "tail"}, {"h", "r", "t"})
    else:
        assert got == [list(row) for row in rows]


@settings(max_examples=200)
@given(
    st.binary(max_size=80),
    st.sampled_from([b"", b"\x1f\x8b\x08\x00", b"BZh91AY&SY", b"\xfd7zXZ\x00"]),
)
def test_any_bytes_give_triples_or_an_error_with_the_file(content, mark):
    got = read_or_error(mark + content)
    assert not isinstance(got, str) or got.startswith("file.txt")


@pytest.mark.parametrize("pack", PACKED[1:])
def test_every_truncation_is_an_error(pack):
    content = pack("".join(f"e{i}\tr{i % 3}\te{i * i}\n" for i in range(60)).encode())
    for size in range(12, len(content), 3):
        with pytest.raises(DataError, match=r"file\.txt: the .* file is (truncated|damaged)"):
            read(content[:size])
