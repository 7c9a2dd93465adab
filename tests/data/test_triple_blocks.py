"""Pieces of files against the reader of whole files."""

import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sheafprop.data import triple_blocks as module
from sheafprop.data.triple_blocks import triple_blocks
from sheafprop.data.triples import read_located, read_triples
from sheafprop.errors import DataError

ROWS = [(f"e{i % 7}", f"r{i % 3}", f"ü {i % 11}") for i in range(40)]


def joined(path, **options):
    """All labels and places of the pieces of a file, and the number of pieces."""
    triples, places, count = [], [], 0
    for block in triple_blocks(path, **options):
        count += 1
        triples += [block.labels(row) for row in range(len(block))]
        places += [f"{block.place} {line}" for line in block.lines]
    return triples, places, count


def check(path, **options):
    expected = read_located(path, **options)
    triples, places, count = joined(path, **options)
    assert triples == expected.rows.tolist()
    assert places == [expected.place(row) for row in range(len(expected))]
    return count


def text(rows, end="\n"):
    return end.join("\t".join(row) for row in rows) + end


@pytest.mark.parametrize("size", [64, 101, 2**22])
@pytest.mark.parametrize(
    "content",
    [
        text(ROWS),
        text(ROWS).removesuffix("\n"),
        text(ROWS, "\r\n"),
        "\ufeff" + text(ROWS),
        text(ROWS).replace("\n", "\n\n", 9) + "   \n\n",
        "\n\n\n" * 40 + text(ROWS),
        "head\trelation\ttail\n" + text(ROWS),
    ],
)
def test_pieces_are_the_file(tmp_path, monkeypatch, content, size):
    monkeypatch.setattr(module, "_BLOCK", size)
    path = tmp_path / "x.tsv"
    path.write_bytes(content.encode())
    assert (check(path) > 3) == (size < 2**22)


def test_other_columns_and_formats(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 64)
    wide = tmp_path / "wide.tsv"
    wide.write_text("x\tto\tkind\tfrom\n" + "".join(f"1\t{t}\t{r}\t{h}\n" for h, r, t in ROWS))
    assert check(wide, columns="from,kind,to") > 3
    table = tmp_path / "x.csv"
    table.write_text("".join(f'"{h}",{r},{t}\n' for h, r, t in ROWS))
    assert check(table) == 1
    packed = tmp_path / "x.tsv.gz"
    packed.write_bytes(gzip.compress(text(ROWS).encode()))
    check(packed)
    packed.rename(tmp_path / "unnamed")
    check(tmp_path / "unnamed")


@pytest.mark.parametrize(
    "bad",
    ["a\tb", "a\tb\tc\td", "a\t\tc", "a\rb\tr\tc", "a\0\tr\tc", b"\xff\tr\tt"],
    ids=["short", "long", "empty", "return", "nul", "latin"],
)
@pytest.mark.parametrize("place", [0, 39])
def test_a_fault_is_named_by_its_line_in_the_file(tmp_path, monkeypatch, bad, place):
    lines = text(ROWS).encode().split(b"\n")
    lines.insert(place, bad if isinstance(bad, bytes) else bad.encode())
    path = tmp_path / "x.tsv"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError) as expected:
        read_triples(path)
    monkeypatch.setattr(module, "_BLOCK", 100)
    with pytest.raises(DataError) as found:
        joined(path)
    assert str(found.value) == str(expected.value)
    assert f"line {place + 1}" in str(found.value)


def test_files_without_triples_and_of_other_formats(tmp_path):
    path = tmp_path / "x.tsv"
    for content, words in (("\n \n", "no triple"), ("<a> <b> <c> .\n", "N-Triples")):
        path.write_text(content)
        with pytest.raises(DataError, match=words):
            joined(path)
    with pytest.raises(DataError, match="cannot be read"):
        joined(tmp_path / "missing.tsv")


def test_selected_triples_keep_their_lines(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text(text(ROWS))
    (block,) = triple_blocks(path)
    some = block.select(np.arange(40) % 2 == 1)
    assert [some.labels(i) for i in range(3)] == [list(ROWS[i]) for i in (1, 3, 5)]
    assert some.lines[:3] == [2, 4, 6]


@given(st.lists(st.text("ab\t\n\r ü", max_size=12), max_size=12), st.integers(1, 40))
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_text_reads_as_a_whole_or_is_refused_alike(tmp_path, parts, size):
    path = tmp_path / "x.tsv"
    path.write_bytes("\n".join(parts).encode())
    options = dict(header="no", columns=(0, 1, 2))
    try:
        expected = read_triples(path, **options).tolist()
    except DataError:
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", size)
        try:
            found = joined(path, **options)[0]
        except DataError:
            found = None
    # What is wider than three columns is told from the first row of each piece.
    if expected is not None or found is None:
        assert found == expected
