"""Files of triples in pieces, as places in their text: no Python string for every label."""

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

# Bytes of text in a piece: more rows than are looked at to tell what the columns hold.
_BLOCK = 2**22
_SEPARATORS = np.frombuffer(b"\t\t\n", dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class TripleBlock:
    """Some triples of a file.

    Args:
        raw: Text, uint8.
        begin, end: Where the three labels of each triple lie in it, int64 ``[m, 3]``.
        place: The file and what its numbers count, such as ``"x.tsv, line"``.
        lines: The numbers of the triples ``[m]``.
    """

    raw: NDArray
    begin: NDArray
    end: NDArray
    place: str
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.begin)

    def select(self, kept: NDArray) -> "TripleBlock":
        """Some of the triples, by a bool mask ``[m]``."""
        lines = np.asarray(self.lines)[kept].tolist()
        return TripleBlock(self.raw, self.begin[kept], self.end[kept], self.place, lines)

    def labels(self, row: int) -> list[str]:
        """The labels of a triple."""
        places = zip(self.begin[row].tolist(), self.end[row].tolist(), strict=True)
        return [self.raw[a:b].tobytes().decode("utf-8", "surrogatepass") for a, b in places]


def triple_blocks(
    path: str | os.PathLike[str], *, known: Container[str] = (), **options: Any
) -> Iterator[TripleBlock]:
    """The triples of a file in pieces, as :func:`~sheafprop.data.read_triples` reads them.

    Text with tabs is read piece by piece, also where it is compressed. Of other formats all labels
    are in memory at once.

    Args:
        path: The file.
        known: Labels that are known from elsewhere: a first line with one of them is not a header.
        **options: ``columns``, ``header``, ``delimiter``, ``format`` and ``prefixes`` of
            :func:`~sheafprop.data.read_triples`.

    Raises:
        DataError: As :func:`~sheafprop.data.read_triples`; whether the first line is a header, and
            the order of the columns, is found in the first piece.
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
            # Behind as many blank lines as come before it, for the numbers in messages.
            text = decode(b"\n" * (line - 1) + piece, source)
            lines, rows, columns = text_triples(text, source, chosen, "\t", known)
            block = _of_labels(shorten_iris(rows, source, chosen), f"{source}, line", lines)
        else:
            found = _regular(piece, source, line) if columns is None else None
            block = found or _irregular(piece, source, line, columns)
        # A piece of nothing but blank lines says nothing about the columns.
        first = first and not len(block)
        count += len(block)
        if len(block):
            yield block
    if not count:
        raise DataError(f"{source}: the file holds no triple ({file.size} bytes)")


def _lines_of(file: InputFile) -> Iterator[tuple[int, bytes]]:
    """Pieces of whole lines, each with the number of its first line."""
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
    """The triples of plain lines of three labels each; None for any other text."""
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
    """The triples of any other text; what is wrong is named by its line in the file."""

    def read(text: str) -> tuple[Sequence[int], NDArray]:
        lines, rows = split_rows(text, source, "\t", columns=columns)
        rows = rows if columns is None or not len(rows) else rows[:, list(columns)]
        check_no_empty(rows, lines, source)
        return lines, rows

    try:
        lines, rows = read(decode(piece, source))
    except DataError:
        # Once more, behind as many blank lines as come before: for the number in the message.
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
