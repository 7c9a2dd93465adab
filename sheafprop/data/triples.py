"""Reading and writing label triples as text files, with labels taken literally."""

import codecs
import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sheafprop.errors import DataError

__all__ = ["LabelTriples", "as_label_triples", "parse_triples", "read_triples", "write_triples"]

LabelTriples = NDArray[np.object_]

_BOM = codecs.BOM_UTF8
# Words only: single letters such as ``s r t`` are common labels of small graphs.
_HEADER_WORDS = (
    {"head", "subject", "source", "from", "head_id", "start_id"},
    {"rel", "relation", "predicate", "edge", "type", "label", "relation_id"},
    {"tail", "object", "target", "to", "tail_id", "end_id"},
)


def as_label_triples(triples: Iterable[Sequence[str]], source: str = "triples") -> LabelTriples:
    r"""Turns rows of three strings into an object array of shape ``[m, 3]``.

    Args:
        triples: The rows ``(head, relation, tail)``, in any sequence or array.
        source: The name to use in error messages.

    Raises:
        DataError: If a row does not hold three strings.
    """
    rows = triples if isinstance(triples, np.ndarray) else list(triples)
    if len(rows) == 0:
        return np.empty((0, 3), dtype=object)
    if not isinstance(rows, np.ndarray):
        for number, row in enumerate(rows):
            if isinstance(row, str) or len(row) != 3:
                raise DataError(f"{source}: a triple has 3 labels (got {row!r} in row {number})")
    array = np.asarray(rows, dtype=object)
    if array.shape != (len(rows), 3):
        raise DataError(f"{source}: label triples have shape [m, 3] (got {list(array.shape)})")
    kinds = {kind for kind in map(type, array.ravel()) if not issubclass(kind, str)}
    if kinds:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        odd = next(i for i, row in enumerate(array) if not all(isinstance(x, str) for x in row))
        raise DataError(
            f"{source}: labels must be strings (got values of type {names}, the first in row "
            f"{odd}: {_show(array[odd].tolist())})"
        )
    return array


def read_triples(
    path: str | os.PathLike[str],
    *,
    columns: tuple[int, int, int] | None = None,
    header: bool | None = None,
    delimiter: str = "\t",
    allow_empty: bool = False,
) -> LabelTriples:
    r"""Reads a file of ``head<TAB>relation<TAB>tail`` lines.

    The file is UTF-8, with or without a byte order mark; lines end in LF or CRLF, and the last line
    end may be missing. Blank lines are skipped. Labels are taken literally: quotes, commas, spaces
    around them and texts such as ``NA`` or ``1.0`` stay what they are.

    Args:
        path: The file.
        columns: The columns of head, relation and tail, counted from 0, for files with more columns
            or another order. By default every line must hold exactly three fields.
        header: Whether to skip the first line. By default it is read as a triple, unless it
            consists of column names (``head relation tail``), which is refused.
        delimiter: With any other character than the tab, the file is read as CSV: fields may then
            be quoted.
        allow_empty: Whether a file without a triple is fine.

    Returns:
        An object array of strings of shape ``[m, 3]``, in the order of the file.

    Raises:
        DataError: If a line is malformed (with file, line number and content), the file is not
            UTF-8 text, or it holds no triple.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{os.fspath(path)}: cannot be read ({error.strerror or error})") from error
    return parse_triples(
        content,
        os.fspath(path),
        columns=columns,
        header=header,
        delimiter=delimiter,
        allow_empty=allow_empty,
    )


def parse_triples(
    content: bytes,
    source: str,
    *,
    columns: tuple[int, int, int] | None = None,
    header: bool | None = None,
    delimiter: str = "\t",
    allow_empty: bool = False,
) -> LabelTriples:
    r"""Reads triples from the bytes of a file; see :func:`read_triples`.

    Args:
        content: The bytes.
        source: The name of the file, for error messages.

    Raises:
        DataError: As :func:`read_triples`.
        ValueError: If ``columns`` or ``delimiter`` make no sense.
    """
    if columns is not None and (len(set(columns)) != 3 or min(columns) < 0):
        raise ValueError(f"'columns' needs three different columns from 0 on (got {columns})")
    text = _decode(content, source)
    if delimiter == "\t":
        numbers, triples = _split_lines(text, source, columns, header)
    else:
        numbers, triples = _split_csv(text, source, columns, header, delimiter)
    if len(triples) == 0:
        if allow_empty:
            return np.empty((0, 3), dtype=object)
        raise DataError(f"{source}: the file holds no triple ({len(content)} bytes)")
    if columns is not None:
        triples = np.ascontiguousarray(triples[:, list(columns)])
    if header is None:
        _refuse_header(triples[0], numbers[0], source)
    empty = np.flatnonzero((triples == "").any(axis=1))
    if len(empty):
        row = int(empty[0])
        raise DataError(
            f"{source}, line {numbers[row]}: a label is empty (got {_show(triples[row])})"
            + _others(len(empty))
        )
    return triples


def write_triples(path: str | os.PathLike[str], triples: Iterable[Sequence[str]]) -> None:
    r"""Writes label triples so that :func:`read_triples` gives back the same labels.

    Args:
        path: The file, replaced as a whole where it exists.
        triples: The rows ``(head, relation, tail)``.

    Raises:
        DataError: If a label cannot stand in such a file: an empty one, or one with a tab, a line
            break or a NUL character.
    """
    array = as_label_triples(triples)
    for row, labels in enumerate(array):
        for label in labels:
            if label == "" or any(character in label for character in "\t\n\r\0"):
                raise DataError(
                    f"{os.fspath(path)}: label {label!r} of row {row} cannot be written: labels "
                    "must not be empty and hold no tab, line break or NUL character"
                )
    text = "".join("\t".join(labels) + "\n" for labels in array)
    # A leading mark would be taken for a byte order mark, so a real one is put before it.
    mark = _BOM if text.startswith("\ufeff") else b""
    try:
        content = mark + text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{os.fspath(path)}: a label is not valid Unicode ({error})") from error
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _decode(content: bytes, source: str) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(
            f"{source}: this is UTF-16 text (it begins with a UTF-16 byte order mark). Save the "
            "file as UTF-8."
        )
    body = content.removeprefix(_BOM)
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


def _split_lines(
    text: str, source: str, columns: tuple[int, int, int] | None, header: bool | None
) -> tuple[Sequence[int], LabelTriples]:
    """Splits tab-separated text at once; fields are counted line by line only to name a fault."""
    if header:
        text = "\n" + text.partition("\n")[2]  # a blank line keeps the numbers of the others
    lines = text.split("\n")
    numbers: Sequence[int] = range(1, len(lines) + 1)
    blank = [not line or ("\t" not in line and line.isspace()) for line in lines]
    if blank[-1] and not any(blank[:-1]):
        lines, numbers = lines[:-1], numbers[:-1]
    elif any(blank):
        numbers = [number for number, skip in enumerate(blank, 1) if not skip]
        lines = [lines[number - 1] for number in numbers]
    if not lines:
        return numbers, np.empty((0, 3), dtype=object)
    width = 3 if columns is None else lines[0].count("\t") + 1
    tabs = np.fromiter((line.count("\t") for line in lines), dtype=np.int64, count=len(lines))
    if (tabs + 1 != width).any() or (columns is not None and max(columns) >= width):
        _check_fields(numbers, [line.split("\t") for line in lines], source, columns, "tab")
    fields = np.array("\t".join(lines).split("\t"), dtype=object)
    return numbers, fields.reshape(-1, width)


def _split_csv(
    text: str,
    source: str,
    columns: tuple[int, int, int] | None,
    header: bool | None,
    delimiter: str,
) -> tuple[Sequence[int], LabelTriples]:
    if len(delimiter) != 1 or delimiter in '"\n':
        raise ValueError(f"'delimiter' must be a single character (got {delimiter!r})")
    numbers, rows, first = [], [], 1
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if row and not (len(row) == 1 and not row[0].strip()):
                numbers.append(first)
                rows.append(row)
            first = reader.line_num + 1
    except csv.Error as error:
        reason = str(error)
        if reason == "unexpected end of data":
            reason = "a quotation mark opens a field and is not closed"
        raise DataError(f"{source}, line {first}: {reason}") from error
    if header:
        numbers, rows = numbers[1:], rows[1:]
    _check_fields(numbers, rows, source, columns, "comma" if delimiter == "," else delimiter)
    return numbers, np.array(rows, dtype=object)


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
        advice = " Keep three columns, or name them with 'columns' (--columns 0,1,2)."
    raise DataError(
        f"{source}, line {numbers[wrong[0]]}: expected {width} {separator}-separated fields "
        f"({names}), got {len(row)}: {_show(row)}.{advice}" + _others(len(wrong))
    )


def _refuse_header(first: Sequence[str], number: int, source: str) -> None:
    if all(
        label.strip().lower() in words for label, words in zip(first, _HEADER_WORDS, strict=True)
    ):
        raise DataError(
            f"{source}, line {number}: this looks like column names, not a triple "
            f"(got {_show(first)}). Remove the line, or give header=True (--header) to skip it, or "
            "header=False to read it as a triple."
        )


def _show(fields: Sequence[str]) -> str:
    text = ", ".join(repr(field) for field in fields[:3]) + (", ..." if len(fields) > 3 else "")
    return text if len(text) <= 80 else text[:77] + "..."


def _others(count: int) -> str:
    return "" if count == 1 else f" ({count - 1} more such lines.)"
