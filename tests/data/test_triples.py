import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafprop.data import as_label_triples, parse_triples, read_triples, write_triples
from sheafprop.data.triples import format_triples
from sheafprop.errors import DataError

ROWS = [["a", "r", "b"], ["b", "s", "c"]]
LABELS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\t\n\r\0"), min_size=1
)


def parse(text, **options):
    content = text if isinstance(text, bytes) else text.encode()
    return parse_triples(content, "file.txt", **options).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "a\tr\tb\nb\ts\tc\n",
        "a\tr\tb\nb\ts\tc",
        "a\tr\tb\r\nb\ts\tc\r\n",
        "a\tr\tb\r\nb\ts\tc\r",
        "\ufeffa\tr\tb\nb\ts\tc\n",
        "\n\na\tr\tb\n\n \nb\ts\tc\n\n\n",
        "\r\na\tr\tb\r\n   \r\nb\ts\tc\r\n\r\n",
    ],
)
def test_line_ends_marks_and_blank_lines(text):
    assert parse(text) == ROWS


@pytest.mark.parametrize(
    "label",
    [
        '"New York, NY"',
        '"',
        "O'Brien",
        "<http://dbpedia.org/resource/x.y>",
        "NA",
        "null",
        "nan",
        "1.0",
        "007",
        " padded ",
        "\u00a0",
        "line\u2028separator\x0b\x0c\x1c\x85",
        "#comment",
        "日本",
        "e\u0301",
        "\u00e9",
        "x\ufeff",
    ],
)
@pytest.mark.parametrize("place", range(3))
def test_labels_are_literal(label, place, tmp_path):
    row = ["a", "r", "b"]
    row[place] = label
    assert parse("\t".join(row) + "\nq\tr\tq\n") == [row, ["q", "r", "q"]]
    write_triples(tmp_path / "t.txt", [row])
    assert read_triples(tmp_path / "t.txt").tolist() == [row]


@given(st.lists(st.tuples(LABELS, LABELS, LABELS), min_size=1))
def test_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("round") / "triples.txt"
    write_triples(path, rows)
    assert read_triples(path, header=False, columns=(0, 1, 2)).tolist() == [list(r) for r in rows]
    assert os.listdir(path.parent) == ["triples.txt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a\tr\tb\n\na r b\nc\tr\td\n",
            r"line 3: expected 3 tab-separated .* got 1: 'a r b'.*tabs",
        ),
        ("a\tr\tb\nlonely\n", r"line 2: expected 3 .* got 1: 'lonely'.*tabs"),
        ("a\tr\tb\na\tr\n", r"line 2: .* got 2: 'a', 'r'"),
        ("0\ta\tr\tb\n", r"line 1: .* got 4: '0', 'a', 'r', \.\.\..*columns"),
        ("a\tr\tb\n" + "x\ty\n" * 4, r"line 2: .* \(3 more such lines"),
        ("a\tr\tb\n\t\t\n", r"line 2: a label is empty \(got '', '', ''\)"),
        ("a\tr\tb\n\nc\t\td\n", r"line 3: a label is empty \(got 'c', '', 'd'\)"),
        ("a\tr\tb\t\n", r"line 1: .* got 4"),
        ("\t\n", r"line 1: .* got 2"),
        (b"a\tr\tb\nc\tr\t\xff\n", r"line 2: not UTF-8 text \(byte 0xff\)"),
        ("a\tr\tb\n".encode("utf-16"), "UTF-16 text .* Save the file as UTF-8"),
        ("a\tr\tb\n".encode("utf-16-le"), "line 1: a NUL character"),
        ("a\tr\tb\nc\tr\0\td\n", "line 2: a NUL character"),
        ("a\tr\tb\rc\tr\td\r", "line 1: a carriage return"),
        ("", r"no triples \(0 bytes\)"),
        ("\n \n", "no triple"),
        ("a r\tb\n", "A space may be used instead of a tab"),
        ("head\trelation\ttail\nhead\tr\tb\n", "line 1: this looks like column names"),
        ("from\tedge\tto\na\tr\tb\n", "line 1: this row looks like column names"),
        ("\n Subject\tPREDICATE\tobject\n", "line 2: this looks like column names"),
    ],
)
def test_malformed_text_is_named(text, message):
    with pytest.raises(DataError, match=f"^file.txt.*{message}"):
        parse(text)


def test_long_content_is_cut():
    with pytest.raises(DataError) as caught:
        parse("x" * 500 + "\n")
    assert "x" * 60 in str(caught.value)
    assert "x" * 80 not in str(caught.value)


def test_a_fault_late_in_a_large_file_has_its_line():
    lines = [f"e{i}\tr\te{i + 1}" for i in range(50000)]
    lines[43210] = "e1 r e2"
    with pytest.raises(DataError, match="line 43211:"):
        parse("\r\n".join(lines))


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        ("head\trelation\ttail\na\tr\tb\n", {"header": True}, [["a", "r", "b"]]),
        ("head\trelation\ttail\n", {"header": False}, [["head", "relation", "tail"]]),
        ("0\ta\tr\tb\n1\tb\ts\tc", {"columns": (1, 2, 3)}, ROWS),
        ("b\ta\tr\nc\tb\ts\n", {"columns": (1, 2, 0)}, ROWS),
        ("i\th\tr\tt\n0\ta\tr\tb", {"columns": (1, 2, 3), "header": True}, [["a", "r", "b"]]),
        ('"a, b",r,"say ""x"""\n', {"delimiter": ","}, [["a, b", "r", 'say "x"']]),
        ("h\tr\tt\n", {}, [["h", "r", "t"]]),
        ("h,r,t\n\na,r,b\n", {"delimiter": ",", "header": True}, [["a", "r", "b"]]),
        ("0;a;r;b\n", {"delimiter": ";", "columns": (1, 2, 3)}, [["a", "r", "b"]]),
        ("\n\n", {"allow_empty": True}, []),
        ("h\tr\tt\n", {"allow_empty": True, "header": True}, []),
        ("", {"allow_empty": True, "delimiter": ","}, []),
    ],
)
def test_options(text, options, rows):
    assert parse(text, **options) == rows


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("0\ta\tr\tb\n1\ta\tr\n", {"columns": (1, 2, 3)}, "line 2: expected 4 .* got 3"),
        ("a\tr\tb\n", {"columns": (1, 2, 3)}, "line 1: expected 4 .* got 3"),
        ("a,r,b\na,r\n", {"delimiter": ","}, "line 2: expected 3 comma-separated .* got 2"),
        ('a,r,b\n"a,r,b\nc,r,d\n\n', {"delimiter": ","}, "line 2: a quoted field is not"),
        ('a,r,b\n"a\nb",r\n', {"delimiter": ","}, "line 2: expected 3"),
        ('a,r,b\n"a,r,b\n', {"delimiter": ","}, "line 2: a quoted field is not closed"),
        ("h\tr\tt\na\tr\tb\nc\tr\n", {"header": True}, "line 3: expected 3 .* got 2"),
        ("h,r,t\na,r,b\nc,r\n", {"header": True, "delimiter": ","}, "line 3: expected 3"),
    ],
)
def test_malformed_text_with_options(text, options, message):
    with pytest.raises(DataError, match=message):
        parse(text, **options)


@pytest.mark.parametrize("options", [{"columns": (0, 0, 1)}, {"columns": (-1, 0, 1)}])
def test_bad_columns(options):
    with pytest.raises(ValueError, match="three different columns"):
        parse("a\tr\tb", **options)


def test_bad_delimiter():
    with pytest.raises(ValueError, match="single character"):
        parse("a\tr\tb", delimiter="::")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: cannot be read \(No such file"):
        read_triples(tmp_path / "none.txt")
    with pytest.raises(DataError, match="is a folder; give the files in it"):
        read_triples(tmp_path)


@pytest.mark.parametrize("label", ["", "a\tb", "a\nb", "a\r", "a\0", "\ud800"])
def test_labels_that_cannot_be_written(label, tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("kept")
    with pytest.raises(DataError, match=r"t\.txt"):
        write_triples(path, [("a", "r", "b"), ("a", "r", label)])
    assert path.read_text() == "kept"


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "t.txt"
    path.write_text("kept")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="the disk is full"):
        write_triples(path, [("a", "r", "b")])
    assert path.read_text() == "kept"
    assert os.listdir(tmp_path) == ["t.txt"]


def test_content_of_a_file_names_the_source_that_is_given(tmp_path):
    write_triples(tmp_path / "t.txt", ROWS)
    assert format_triples(ROWS, "elsewhere") == (tmp_path / "t.txt").read_bytes()
    for label in ("a\nb", "\ud800"):
        with pytest.raises(DataError, match=r"^elsewhere: .*label"):
            format_triples([("a", "r", label)], "elsewhere")


def test_as_label_triples():
    array = as_label_triples(tuple(row) for row in ROWS)
    assert array.dtype == object
    assert array.tolist() == ROWS
    assert as_label_triples(np.array(ROWS)).tolist() == ROWS
    assert as_label_triples([]).shape == (0, 3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "r", "b"), ("a", "r")], r"3 labels \(got \('a', 'r'\) in row 1\)"),
        (["abc"], "3 labels"),
        ([("a", "r", True)], "type bool"),
        ([("a", "r", None), (1.0, "r", "b")], "type NoneType, float"),
        (np.zeros((2, 2)), r"shape \[m, 3\] \(got \[2, 2\]\)"),
        (np.zeros((2, 3)), "type float"),
    ],
)
def test_what_is_no_label_triple(rows, message):
    with pytest.raises(DataError, match=message):
        as_label_triples(rows, "here")
