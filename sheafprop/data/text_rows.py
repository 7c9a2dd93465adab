"""Splits text into rows of fields; errors name the line."""

import codecs
import csv
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sheafprop.checks import count_noun
from sheafprop.data.column_names import LabelTriples, show_fields
from sheafprop.errors import DataError

BOM = codecs.BOM_UTF8
# A line is not blank if it holds a tab, or a character that is not white space.
_ROW = re.compile(r"^.*[\t\S].*$", re.MULTILINE)
_SEPARATORS = np.frombuffer(b"\t\t\n", dtype=np.uint8)
#: Maximum number of rows that a message names.
_NAMED = 5


@dataclass(frozen=True, eq=False)
class LocatedRows:
    """Rows, such as triples or queries, and where they come from.

    Args:
        rows: The rows.
        parts: For each part of the rows, a prefix such as ``"x.tsv, line"`` and the numbers of its
            rows, which follow the prefix in messages.
        aliases: Alternative ids declared by the file, and their terms.
    """

    rows: Any
    parts: tuple[tuple[str, Sequence[int]], ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def number(cls, rows: Any, word: str = "row", start: int = 0) -> "LocatedRows":
        """Numbers rows that do not come from a file."""
        return cls(rows, ((word, range(start, start + len(rows))),))

    @classmethod
    def join(cls, parts: Sequence["LocatedRows"]) -> "LocatedRows":
        """Concatenates arrays of rows."""
        rows = np.concatenate([part.rows for part in parts])
        return cls(rows, tuple(place for part in parts for place in part.parts))

    def place(self, row: int) -> str:
        """Returns the place of a row."""
        for name, numbers in self.parts:
            if row < len(numbers):
                return f"{name} {numbers[row]}"
            row -= len(numbers)
        raise IndexError(row)

    def places(self, rows: Sequence[int]) -> str:
        """Returns the places of the first of the given rows, and the number of the others."""
        named = "; ".join(self.place(row) for row in rows[:_NAMED])
        return named + (f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else "")

    def select(self, rows: Sequence[int]) -> "LocatedRows":
        """Selects rows of an array, in ascending order."""
        parts, start = [], 0
        for name, numbers in self.parts:
            inner = [row - start for row in rows if start <= row < start + len(numbers)]
            parts.append((name, [numbers[row] for row in inner]))
            start += len(numbers)
        return LocatedRows(self.rows[rows], tuple(parts))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def decode(content: bytes, source: str) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(
            f"{source}: this is UTF-16 text (it begins with a UTF-16 byte order mark). Save the "
            "file as UTF-8."
        )
    body = content.removeprefix(BOM)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{source}, line {line}: not UTF-8 text (byte 0x{body[error.start]:02x}). "
            "Save the file as UTF-8."
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(
            f"{source}, line {line}: a NUL character. Is this a binary file, or UTF-16 text?"
        )
    text = text.replace("\r\n", "\n").removesuffix("\r")
    if "\r" in text:
        line = text.count("\n", 0, text.index("\r")) + 1
        raise DataError(
            f"{source}, line {line}: a carriage return inside the line. "
            "Save the file with LF or CRLF line ends."
        )
    return text


def first_row(text: str, source: str, delimiter: str) -> tuple[int, list[str]] | None:
    """Returns the line and the fields of the first row that is not blank, if there is one."""
    if delimiter != "\t":
        return next(_csv_rows(text, source, delimiter), None)
    found = _ROW.search(text)
    return found and (text.count("\n", 0, found.start()) + 1, found[0].split("\t"))


def iterate_rows(text: str, source: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows that are not blank with their first lines. Tabs disable quoting."""
    if delimiter != "\t":
        yield from _csv_rows(text, source, delimiter)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line and ("\t" in line or not line.isspace()):
            yield number, line.split("\t")


def guess_delimiter(text: str, source: str) -> str:
    """Infers the delimiter of CSV from the first row. Warns if it is not the comma."""
    for delimiter in ",;\t|":
        try:
            found = first_row(text, source, delimiter)
        except DataError:
            continue
        if found is not None and len(found[1]) >= 3:
            if delimiter != ",":
                warnings.warn(
                    f"{source}: {delimiter!r} is used as the delimiter, as in the first row "
                    "(--delimiter changes this)",
                    stacklevel=5,
                )
            return delimiter
    return ","


def split_rows(
    text: str,
    source: str,
    delimiter: str,
    *,
    columns: tuple[int, int, int] | None = None,
    skipped: int = 0,
    width: int | None = None,
) -> tuple[Sequence[int], LabelTriples]:
    r"""Splits text into rows with the same number of fields.

    Args:
        text: Lines that end in LF.
        source: The file, for error messages.
        delimiter: The character between fields. Unless it is the tab, fields may be quoted.
        columns: The required columns. (default: every row must have three fields)
        skipped: The number of lines to skip at the start.
        width: The number of fields. Shorter rows are padded with empty fields.

    Returns:
        The line numbers of the rows ``[m]``, and an object array of their fields ``[m, width]``.

    Raises:
        DataError: If a row has too few or too many fields.
    """
    numbers: list[int] = []
    rows: list[list[str]] = []
    if delimiter != "\t":
        for number, row in _csv_rows(text, source, delimiter):
            if number > skipped:
                numbers.append(number)
                rows.append(row)
    else:
        for _ in range(skipped):
            text = text.partition("\n")[2]
        first = skipped + 1
        if columns is None and width is None and _is_regular(text):
            fields = np.array(text.removesuffix("\n").replace("\n", "\t").split("\t"), dtype=object)
            return range(first, first + len(fields) // 3), fields.reshape(-1, 3)
        lines = text.split("\n")
        numbers = [
            number
            for number, line in enumerate(lines, first)
            if line and ("\t" in line or not line.isspace())
        ]
        rows = [lines[number - first].split("\t") for number in numbers]
    if not rows:
        return numbers, np.empty((0, 3), dtype=object)
    if width is not None:
        rows = [row + [""] * (width - len(row)) for row in rows]
    _check_fields(numbers, rows, source, columns, delimiter, width)
    array = np.empty((len(rows), len(rows[0])), dtype=object)
    array[:] = rows
    return numbers, array


def _is_regular(text: str) -> bool:
    """Whether every line has exactly three fields, none of them empty."""
    raw = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
    places = np.flatnonzero((raw == 9) | (raw == 10))
    if len(raw) and raw[-1] != 10:
        places = np.append(places, len(raw))
    if not len(places) or len(places) % 3 or places[0] == 0 or bool((np.diff(places) == 1).any()):
        return False
    kinds = np.append(raw, 10)[places] if places[-1] == len(raw) else raw[places]
    return bool((kinds.reshape(-1, 3) == _SEPARATORS).all())


def _csv_rows(text: str, source: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows that are not blank, with their first lines."""
    first = 1
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if row and not (len(row) == 1 and not row[0].strip()):
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        reason = str(error)
        if reason == "unexpected end of data":
            reason = "a quoted field is not closed"
        elif "expected after" in reason:
            reason = (
                "a quoted field continues after its closing quotation mark. Double the quotation "
                "marks inside a quoted field, and close the quoted fields before this one"
            )
        raise DataError(f"{source}, line {first}: {reason}") from error


def _check_fields(
    numbers: Sequence[int],
    rows: Sequence[list[str]],
    source: str,
    columns: tuple[int, int, int] | None,
    delimiter: str,
    given: int | None,
) -> None:
    """Raises a :class:`DataError` for the first row with a wrong number of fields."""
    separator = {"\t": "tab", ",": "comma"}.get(delimiter, delimiter)
    width = (given or 3) if columns is None else max(len(rows[0]), max(columns) + 1)
    wrong = [index for index, row in enumerate(rows) if len(row) != width]
    if not wrong:
        return
    row = rows[wrong[0]]
    names = "as in the header" if given else "head, relation, tail"
    if columns is not None:
        is_first = len(rows[0]) == width
        names = "as in the first row" if is_first else "columns " + ",".join(map(str, columns))
    advice = ""
    if other := _other_delimiter(row, width, delimiter):
        advice = f" Are they separated by {other!r}? Give --delimiter {other!r}."
    elif separator == "tab" and len(row) == 1:
        advice = " The fields must be separated by tabs"
        advice += "; this line has only spaces." if " " in row[0] else "; this line has none."
    elif separator == "tab" and len(row) < width and any(" " in field for field in row):
        advice = " A space may be used instead of a tab."
    elif columns is None and not given and len(row) > 3:
        advice = " Select three columns (--columns 0,1,2 or --columns NAME,NAME,NAME), or give the "
        advice += "file with the header before this one (HEADER,FILE)."
    if not other and separator != "tab" and len(row) > width:
        advice += f" A label that contains {delimiter!r} must be in quotation marks."
    shown = show_fields(row)
    shown += "" if shown.endswith("...") else "."
    raise DataError(
        f"{source}, line {numbers[wrong[0]]}: expected {width} {separator}-separated fields "
        f"({names}), got {len(row)}: {shown}{advice}" + others(len(wrong))
    )


def _other_delimiter(row: list[str], width: int, delimiter: str) -> str | None:
    """Returns a delimiter that gives the required number of fields, if there is one."""
    line = delimiter.join(row)
    return next((c for c in ",;|\t" if c != delimiter and line.count(c) == width - 1), None)


def others(count: int) -> str:
    """Returns the number of further malformed lines, to end a message with."""
    return "" if count == 1 else f" ({count_noun(count - 1, 'more such line')}.)"
