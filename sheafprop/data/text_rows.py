"""Text as rows of fields, with the line of whatever is wrong."""

import codecs
import csv
import io
from collections.abc import Sequence

import numpy as np

from sheafprop.data.column_names import LabelTriples, show_fields
from sheafprop.errors import DataError

__all__ = ["BOM", "decode", "first_row", "others", "split_rows"]

BOM = codecs.BOM_UTF8
_SEPARATORS = np.frombuffer(b"\t\t\n", dtype=np.uint8)


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


def first_row(text: str, source: str, delimiter: str) -> tuple[list[str], int] | None:
    """The fields of the first row that is not blank, and its line; None without such a row."""
    if delimiter != "\t":
        numbers, rows = _csv_rows(text, source, delimiter, only_first=True)
        return (rows[0], numbers[0]) if rows else None
    start, number = 0, 1
    while start < len(text):
        end = text.find("\n", start)
        line = text[start : end if end >= 0 else len(text)]
        if not _is_blank(line):
            return line.split("\t"), number
        if end < 0:
            break
        start, number = end + 1, number + 1
    return None


def split_rows(
    text: str,
    source: str,
    delimiter: str,
    *,
    columns: tuple[int, int, int] | None = None,
    skipped: int = 0,
) -> tuple[Sequence[int], LabelTriples]:
    r"""Splits text into rows of equally many fields.

    Args:
        text: Lines that end in LF.
        source: The file, for error messages.
        delimiter: The character between fields. With any other than the tab, fields may be quoted.
        columns: The columns that are needed; without them every row has three.
        skipped: The number of the line up to which rows are left out, 0 for none.

    Returns:
        The lines of the rows ``[m]``, and an object array of their fields ``[m, width]``.

    Raises:
        DataError: If a row has too few or too many fields.
    """
    if delimiter != "\t":
        return _split_csv(text, source, columns, skipped, delimiter)
    for _ in range(skipped):
        text = text.partition("\n")[2]
    return _split_lines(text, source, columns, skipped + 1)


def _is_blank(line: str) -> bool:
    return not line or ("\t" not in line and line.isspace())


def _split_lines(
    text: str, source: str, columns: tuple[int, int, int] | None, first: int
) -> tuple[Sequence[int], LabelTriples]:
    if columns is None and _is_regular(text):
        fields = np.array(text.removesuffix("\n").replace("\n", "\t").split("\t"), dtype=object)
        return range(first, first + len(fields) // 3), fields.reshape(-1, 3)
    every = text.split("\n")
    numbers = [number for number, line in enumerate(every, first) if not _is_blank(line)]
    lines = [every[number - first] for number in numbers]
    if not lines:
        return numbers, np.empty((0, 3), dtype=object)
    rows = [line.split("\t") for line in lines]
    _check_fields(numbers, rows, source, columns, "tab")
    return numbers, _as_array(rows)


def _is_regular(text: str) -> bool:
    """Whether every line has exactly three fields and none is empty, told from the separators."""
    raw = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
    places = np.flatnonzero((raw == 9) | (raw == 10))
    if len(raw) and raw[-1] != 10:
        places = np.append(places, len(raw))
    if not len(places) or len(places) % 3 or places[0] == 0 or bool((np.diff(places) == 1).any()):
        return False
    kinds = np.append(raw, 10)[places] if places[-1] == len(raw) else raw[places]
    return bool((kinds.reshape(-1, 3) == _SEPARATORS).all())


def _split_csv(
    text: str,
    source: str,
    columns: tuple[int, int, int] | None,
    skipped: int,
    delimiter: str,
) -> tuple[Sequence[int], LabelTriples]:
    numbers, rows = _csv_rows(text, source, delimiter)
    if skipped:
        rows = rows[sum(number <= skipped for number in numbers) :]
        numbers = numbers[len(numbers) - len(rows) :]
    if not rows:
        return numbers, np.empty((0, 3), dtype=object)
    _check_fields(numbers, rows, source, columns, "comma" if delimiter == "," else delimiter)
    return numbers, _as_array(rows)


def _as_array(rows: Sequence[list[str]]) -> LabelTriples:
    array = np.empty((len(rows), len(rows[0])), dtype=object)
    array[:] = rows
    return array


def _csv_rows(
    text: str, source: str, delimiter: str, *, only_first: bool = False
) -> tuple[list[int], list[list[str]]]:
    numbers: list[int] = []
    rows: list[list[str]] = []
    first = 1
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if row and not (len(row) == 1 and not row[0].strip()):
                numbers.append(first)
                rows.append(row)
                if only_first:
                    break
            first = reader.line_num + 1
    except csv.Error as error:
        reason = str(error)
        if reason == "unexpected end of data":
            reason = "a quotation mark opens a field and is not closed"
        raise DataError(f"{source}, line {first}: {reason}") from error
    return numbers, rows


def _check_fields(
    numbers: Sequence[int],
    rows: Sequence[list[str]],
    source: str,
    columns: tuple[int, int, int] | None,
    separator: str,
) -> None:
    """Names the first row with a wrong number of fields, if there is one."""
    if not rows:
        return
    needed = 3 if columns is None else max(columns) + 1
    width = 3 if columns is None else max(len(rows[0]), needed)
    wrong = [index for index, row in enumerate(rows) if len(row) != width]
    if not wrong:
        return
    row = rows[wrong[0]]
    names = "head, relation, tail" if columns is None else f"columns {columns}"
    advice = ""
    if separator == "tab" and len(row) == 1:
        advice = " The fields must be separated by tabs"
        advice += ", this line has spaces only." if " " in row[0] else "; this line has none."
    elif separator == "tab" and len(row) < width and any(" " in field for field in row):
        advice = " There is a space where a tab may be meant."
    elif columns is None and len(row) > 3:
        advice = " Keep three columns, or say which (--columns 0,1,2 or --columns NAME,NAME,NAME)."
    raise DataError(
        f"{source}, line {numbers[wrong[0]]}: expected {width} {separator}-separated fields "
        f"({names}), got {len(row)}: {show_fields(row)}.{advice}" + others(len(wrong))
    )


def others(count: int) -> str:
    """How many more lines have a fault, for the end of a message."""
    return "" if count == 1 else f" ({count - 1} more such lines.)"
