"""Reads files of triples in blocks, as offsets into their text instead of Python strings."""

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sheafprop.data.input_file import InputFile
from sheafprop.data.property_graphs import split_group
from sheafprop.data.read_options import ReadOptions
from sheafprop.data.text_rows import LocatedRows, decode, split_rows
from sheafprop.data.triple_text import check_no_empty, shorten_iris, text_triples
from sheafprop.data.triples import file_format, read_located
from sheafprop.errors import DataError

# Bytes of text in a block: more rows than the checks of columns look at.
_BLOCK = 2**22
_SEPARATORS = np.frombuffer(b"\t\t\n", dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class TripleBlock:
    """A block of triples of a file.

    Args:
        raw: The text, uint8.
        begin, end: Offsets of the three labels of each triple, int64 ``[m, 3]``.
        place: The prefix of line numbers in messages, such as ``"x.tsv, line"``.
        lines: The line numbers of the triples ``[m]``.
    """

    raw: NDArray
    begin: NDArray
    end: NDArray
    place: str
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.begin)

    def select(self, kept: NDArray) -> "TripleBlock":
        """Selects triples by a bool mask ``[m]``."""
        lines = np.asarray(self.lines)[kept].tolist()
        return TripleBlock(self.raw, self.begin[kept], self.end[kept], self.place, lines)

    def labels(self, row: int) -> list[str]:
        """Returns the labels of a triple."""
        places = zip(self.begin[row].tolist(), self.end[row].tolist(), strict=True)
        return [self.raw[a:b].tobytes().decode("utf-8", "surrogatepass") for a, b in places]


def triple_blocks(
    path: str | os.PathLike[str], *, known: Container[str] = (), **options: Any
) -> Iterator[TripleBlock]:
    """Yields the triples of a file in blocks, see :func:`~sheafprop.data.read_triples`.

    Tab-separated text, compressed or not, is streamed. Other formats are read into memory.

    Args:
        path: The file.
        known: Known labels. A first line with one of them is not a header.
        **options: ``columns``, ``header``, ``delimiter``, ``format`` and ``prefixes`` of
            :func:`~sheafprop.data.read_triples`.

    Raises:
        DataError: As :func:`~sheafprop.data.read_triples`. The header and the order of the columns
            are checked in the first block.
    """
    chosen = ReadOptions.of(**options)
    if split_group(path) is not None or chosen.prefixes_given:
        yield from _of_rows(read_located(path, known=known, options=chosen))
        return
    file = InputFile(path)
    source = file.source
    if chosen.delimiter not in (None, "\t") or file_format(file, chosen) != "tsv":
        yield from _of_rows(read_located(file, known=known, options=chosen))
        return
    pieces = _lines_of(file)
    count, first = 0, True
    columns: tuple[int, int, int] | None = None
    for line, piece in pieces:
        if first:
            # Preceded by blank lines, so that messages have the right line numbers.
            text = decode(b"\n" * (line - 1) + piece, source)
            lines, rows, columns = text_triples(text, source, chosen, "\t", known)
            block = _of_labels(shorten_iris(rows, source, chosen), f"{source}, line", lines)
        else:
            found = _regular(piece, source, line) if columns is None else None
            block = found or _irregular(piece, source, line, columns)
        # A block of blank lines cannot be checked.
        first = first and not len(block)
        count += len(block)
        if len(block):
            yield block
    if not count:
        raise DataError(f"{source}: the file holds no triples ({file.size} bytes)")


def _lines_of(file: InputFile) -> Iterator[tuple[int, bytes]]:
    """Yields blocks of whole lines, each with the number of its first line."""
    line, rest = 1, b""
    with file.open() as stream:
        while head := stream.read(_BLOCK):
            piece = rest + head
            cut = piece.rfind(b"\n") + 1
            if cut:
                yield line, piece[:cut]
                line += piece.count(b"\n", 0, cut)
            rest = piece[cut:]
    if rest:
        yield line, rest


def _regular(piece: bytes, source: str, line: int) -> TripleBlock | None:
    """Parses lines of three labels each; returns None for any other text."""
    if b"\r" in piece or b"\0" in piece or not _is_utf8(piece):
        return None
    raw = np.frombuffer(piece, dtype=np.uint8)
    ends = np.flatnonzero((raw == 9) | (raw == 10))
    if raw[-1] != 10:
        ends = np.append(ends, len(raw))
    if len(ends) % 3:
        return None
    begins = np.empty_like(ends)
    begins[0] = 0
    begins[1:] = ends[:-1] + 1
    kinds = np.append(raw, np.uint8(10))[ends].reshape(-1, 3)
    if not bool((kinds == _SEPARATORS).all()) or bool((begins == ends).any()):
        return None
    count = len(ends) // 3
    return TripleBlock(
        raw,
        begins.reshape(-1, 3),
        ends.reshape(-1, 3),
        f"{source}, line",
        range(line, line + count),
    )


def _is_utf8(piece: bytes) -> bool:
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _irregular(
    piece: bytes, source: str, line: int, columns: tuple[int, int, int] | None
) -> TripleBlock:
    """Parses any other text; errors name the line in the file."""

    def read(text: str) -> tuple[Sequence[int], NDArray]:
        lines, rows = split_rows(text, source, "\t", columns=columns)
        rows = rows if columns is None or not len(rows) else rows[:, list(columns)]
        check_no_empty(rows, lines, source)
        return lines, rows

    try:
        lines, rows = read(decode(piece, source))
    except DataError:
        # Again, preceded by blank lines, so that the message has the right line number.
        read(decode(b"\n" * (line - 1) + piece, source))
        raise
    return _of_labels(rows, f"{source}, line", [line - 1 + number for number in lines])


def _of_rows(located: LocatedRows) -> Iterator[TripleBlock]:
    start = 0
    for place, lines in located.parts:
        yield _of_labels(located.rows[start : start + len(lines)], place, lines)
        start += len(lines)


def _of_labels(rows: NDArray, place: str, lines: Sequence[int]) -> TripleBlock:
    encoded = [label.encode("utf-8", "surrogatepass") for label in rows.ravel().tolist()]
    end = np.cumsum([len(label) for label in encoded], dtype=np.int64)
    begin = end - np.fromiter(map(len, encoded), np.int64, len(encoded))
    raw = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return TripleBlock(raw, begin.reshape(-1, 3), end.reshape(-1, 3), place, lines)
