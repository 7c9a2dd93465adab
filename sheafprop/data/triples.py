"""Reading and writing label triples as files, with labels taken literally."""

import io
import os
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sheafprop.data.column_names import (
    LabelTriples,
    check_first_line,
    check_order,
    columns_by_name,
    occur,
    recognize_columns,
    show_fields,
)
from sheafprop.data.file_kinds import decompress, file_suffix, read_file, refuse_other_formats
from sheafprop.data.read_options import ReadOptions
from sheafprop.data.text_rows import BOM, LocatedRows, decode, first_row, others, split_rows
from sheafprop.errors import DataError
from sheafprop.files import write_bytes

__all__ = [
    "LabelTriples",
    "as_label",
    "as_label_triples",
    "format_triples",
    "frame_cells",
    "frame_triples",
    "holds_triples",
    "is_frame",
    "parse_triples",
    "read_located",
    "read_triples",
    "write_triples",
]


#: What a single label may be; see :func:`as_label`.
LABEL = str | int | np.integer


def as_label(value: Any, what: str = "a label") -> str:
    """A label as text: a string as it is, an integer as its decimal text.

    Raises:
        DataError: If it is anything else, as a float or a Boolean.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise DataError(
        f"{what} must be a string or an integer (got {value!r}){_reason({type(value)})}"
    )


def as_label_triples(triples: Iterable[Sequence[Any]], source: str = "triples") -> LabelTriples:
    r"""Turns rows of three labels into an object array of strings of shape ``[m, 3]``.

    Integers are taken as their decimal text: 7 is the label ``"7"``.

    Args:
        triples: The rows ``(head, relation, tail)``, in any sequence or array, or a frame of pandas
            or polars (see :func:`frame_triples`).
        source: The name to use in error messages.

    Raises:
        DataError: If a row does not hold three strings or integers.
    """
    if is_frame(triples):
        return frame_triples(triples, source)
    rows = triples if isinstance(triples, np.ndarray) else list(triples)
    if len(rows) == 0:
        return np.empty((0, 3), dtype=object)
    if not isinstance(rows, np.ndarray):
        for number, row in enumerate(rows):
            if isinstance(row, str) or not hasattr(row, "__len__") or len(row) != 3:
                raise DataError(f"{source}: a triple has 3 labels (got {row!r} in row {number})")
    array = np.asarray(rows, dtype=object)
    if array.shape != (len(rows), 3):
        raise DataError(f"{source}: label triples have shape [m, 3] (got {list(array.shape)})")
    kinds = {kind for kind in map(type, array.ravel()) if not issubclass(kind, str)}
    if not kinds:
        return array
    wrong = {kind for kind in kinds if kind is bool or not issubclass(kind, int | np.integer)}
    if wrong:
        names = ", ".join(sorted(kind.__name__ for kind in wrong))
        odd = next(i for i, row in enumerate(array) if any(type(x) in wrong for x in row))
        raise DataError(
            f"{source}: labels must be strings or integers (got values of type {names}, the first "
            f"in row {odd}: {show_fields(array[odd].tolist())}){_reason(wrong)}"
        )
    texts = [[x if isinstance(x, str) else str(int(x)) for x in row] for row in array]
    return np.array(texts, dtype=object)


def _reason(kinds: set[type]) -> str:
    if any(issubclass(kind, float | np.floating) for kind in kinds):
        return (
            ". A float is no label, as 3.0 and 3 would be different ones: a column of integers "
            "with missing values becomes floats in pandas; drop these rows and convert it, as by "
            "frame[column].astype(int)"
        )
    return ""


def read_triples(
    path: str | os.PathLike[str],
    *,
    columns: Any = None,
    header: Any = None,
    delimiter: str | None = None,
    format: Any = None,
    allow_empty: bool = False,
    known: Container[str] = (),
) -> LabelTriples:
    r"""Reads a file of triples, by default of ``head<TAB>relation<TAB>tail`` lines.

    Text is UTF-8, with or without a byte order mark; lines end in LF or CRLF, and the last line end
    may be missing. Blank lines are skipped. Labels are taken literally: quotes, commas, spaces
    around them and texts such as ``NA`` or ``1.0`` stay what they are. Files compressed by gzip,
    bzip2 or xz (Zstandard from Python 3.14 on) are decompressed.

    A header of usual names (``head relation tail``, ``subject predicate object``,
    ``source relation target``, ``h r t``, ``s p o``, in any order and among other columns) says
    which columns are meant. What else may go wrong without a word is refused, unless an option
    says what it is: a first line whose fields occur nowhere else (``header``), and columns whose
    relation labels are mostly entities (``columns``).

    Args:
        path: The file.
        columns: The columns of head, relation and tail, by numbers from 0 on or by the names of a
            header, for files with more columns or another order; as a sequence, or as text such as
            ``"0,1,2"``. By default every line must hold exactly three fields, or the first line
            usual names.
        header: Whether the first line is a header: True or ``"yes"``, False or ``"no"``, None or
            ``"auto"``.
        delimiter: With any other character than the tab, the file is read as CSV: fields may then
            be quoted. (default: the comma in CSV, else the tab)
        format: ``"tsv"``, ``"csv"`` or ``"parquet"``. By default inferred from the name: ``.csv``,
            ``.parquet`` (also before ``.gz`` and the like), else TSV; RDF, OWL, OBO and JSON are
            recognised and refused.
        allow_empty: Whether a file without a triple is fine.
        known: Labels that are known from elsewhere: a first line with one of them is no header.

    Returns:
        An object array of strings of shape ``[m, 3]``, in the order of the file.

    Raises:
        DataError: If a line is malformed (with file, line number and content), the file is
            truncated, not UTF-8 text or of another format, or it holds no triple.
        ValueError: If an option makes no sense.
    """
    options = ReadOptions.of(columns, header, delimiter, format)
    content, source = read_file(path), os.fspath(path)
    return _parse(content, source, options, allow_empty, known)[1]


def read_located(
    path: str | os.PathLike[str], *, known: Container[str] = (), **options: Any
) -> LocatedRows:
    """The triples of :func:`read_triples` with the line of each."""
    source, chosen = os.fspath(path), ReadOptions.of(**options)
    lines, triples = _parse(read_file(path), source, chosen, False, known)
    if lines:
        return LocatedRows(triples, ((f"{source}, line", lines),))
    return LocatedRows.number(triples, f"{source}, row")


def holds_triples(path: str | os.PathLike[str], delimiter: str | None = None) -> bool:
    """Whether any line of a text file has three fields, as triples have."""
    character = ReadOptions.of(delimiter=delimiter).delimiter
    character = character or ("," if file_suffix(os.fspath(path)) == ".csv" else "\t")
    content = decompress(read_file(path), os.fspath(path))
    lines = decode(content, os.fspath(path)).split("\n")
    return any(line.count(character) >= 2 for line in lines)


def parse_triples(
    content: bytes,
    source: str,
    *,
    columns: Any = None,
    header: Any = None,
    delimiter: str | None = None,
    format: Any = None,
    allow_empty: bool = False,
    known: Container[str] = (),
) -> LabelTriples:
    r"""Reads triples from the bytes of a file; see :func:`read_triples`.

    Args:
        content: The bytes.
        source: The name of the file, for error messages and its format.

    Raises:
        DataError: As :func:`read_triples`.
        ValueError: If an option makes no sense.
    """
    options = ReadOptions.of(columns, header, delimiter, format)
    return _parse(content, source, options, allow_empty, known)[1]


def _parse(
    content: bytes, source: str, options: ReadOptions, allow_empty: bool, known: Container[str]
) -> tuple[Sequence[int], LabelTriples]:
    """The lines of triples, none in a format without lines, and the triples."""
    content = decompress(content, source)
    lines: Sequence[int] = ()
    suffix = file_suffix(source)
    if options.format == "parquet" or (options.format == "auto" and suffix == ".parquet"):
        triples = _parquet_triples(content, source, options)
    else:
        is_csv = options.format == "csv" or (options.format == "auto" and suffix == ".csv")
        text = decode(content, source)
        if options.format == "auto":
            refuse_other_formats(text, source)
        delimiter = options.delimiter or ("," if is_csv else "\t")
        lines, triples, _ = text_triples(text, source, options, delimiter, known)
    if len(triples) == 0 and not allow_empty:
        raise DataError(f"{source}: the file holds no triple ({len(content)} bytes)")
    return lines, triples


def text_triples(
    text: str, source: str, options: ReadOptions, delimiter: str, known: Container[str] = ()
) -> tuple[Sequence[int], LabelTriples, tuple[int, int, int] | None]:
    """The lines and triples of text, without the header and checked, and their columns (None for
    the only three)."""
    first = first_row(text, source, delimiter)
    if first is None:
        return (), np.empty((0, 3), dtype=object), None
    line, names = first
    by_name = None
    if options.has_names:
        assert options.columns is not None
        by_name = columns_by_name(options.columns, names, f"{source}, line {line}")
    elif options.columns is None and options.header is not False:
        by_name = recognize_columns(names)
    columns: Any = by_name or options.columns
    has_header = options.header or by_name is not None
    numbers, rows = split_rows(
        text, source, delimiter, columns=columns, skipped=line if has_header else 0
    )
    if len(rows) and columns is not None:
        triples = np.ascontiguousarray(rows[:, list(columns)])
    else:
        triples = rows
    if by_name is not None and options.columns is None and options.header is None:
        labels = [names[column] for column in by_name]
        is_header = len(triples) > 0 and not occur(set(labels), triples)
        if not is_header and max(map(len, labels)) == 1:
            # Such as the triple "s r t" of a small graph.
            options = replace(options, header=False)
            return text_triples(text, source, options, delimiter, known)
        if not is_header:
            problem = "these labels occur below too" if len(triples) else "no triple follows"
            raise DataError(
                f"{source}, line {line}: this looks like column names, not a triple "
                f"(got {show_fields(names)}), but {problem}. Give header=True (--header yes) to "
                "take it as names, or header=False (--header no) to read it as a triple"
            )
    if len(triples) == 0:
        return (), np.empty((0, 3), dtype=object), columns
    check_no_empty(triples, numbers, source)
    if not has_header and options.header is None:
        check_first_line(triples, numbers[0], source, known)
    if columns is None:
        check_order(triples, source)
    return numbers, triples, columns


def check_no_empty(triples: LabelTriples, numbers: Sequence[int], source: str) -> None:
    """Refuses triples with an empty label, by the line of the first."""
    empty = np.flatnonzero((triples == "").any(axis=1))
    if len(empty):
        row = int(empty[0])
        raise DataError(
            f"{source}, line {numbers[row]}: a label is empty (got {show_fields(triples[row])})"
            + others(len(empty))
        )


def _parquet_triples(content: bytes, source: str, options: ReadOptions) -> LabelTriples:
    import pandas as pd

    try:
        frame = pd.read_parquet(io.BytesIO(content))
    except ImportError as error:
        raise DataError(f"{source}: reading Parquet needs pyarrow: pip install pyarrow") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{source}: cannot be read as Parquet ({error})") from error
    return frame_triples(frame, source, options.columns)


def is_frame(value: Any) -> bool:
    """Whether a value is a frame of pandas, polars or the like: it has named columns."""
    return hasattr(value, "columns") and hasattr(value, "__getitem__")


def frame_triples(frame: Any, source: str, columns: Any = None) -> LabelTriples:
    r"""The label triples of a frame of pandas or polars.

    Args:
        frame: A frame whose columns have usual names (see :func:`read_triples`), or three columns
            in the order head, relation, tail.
        source: The name to use in error messages.
        columns: The columns of head, relation and tail, by number or by name.

    Raises:
        DataError: If the columns are not known, a label is no string or integer, or most relation
            labels also occur as entities.
    """
    cells, has_names = frame_cells(frame, source, columns)
    triples = as_label_triples(cells, source)
    empty = np.flatnonzero((triples == "").any(axis=1))
    if len(empty):
        raise DataError(f"{source}: a label is empty in row {int(empty[0])}{others(len(empty))}")
    if not has_names and len(triples):
        check_order(triples, source)
    return triples


def frame_cells(frame: Any, source: str, columns: Any = None) -> tuple[LabelTriples, bool]:
    """The values of :func:`frame_triples` as they came, and whether their columns were named."""
    names = list(frame.columns)
    chosen: Any = ReadOptions.of(columns).columns
    chosen = recognize_columns(names) if chosen is None else columns_by_name(chosen, names, source)
    if chosen is None and len(names) != 3:
        raise DataError(
            f"{source} needs the columns head, relation and tail, or three columns (got "
            f"{', '.join(map(str, names[:8]))}). Rename them, or say which ones, such as by "
            "--columns 0,1,2 or --columns NAME,NAME,NAME"
        )
    cells = np.empty((len(frame), 3), dtype=object)
    for place, number in enumerate(chosen or (0, 1, 2)):
        # By number where names may repeat; both give Python's own values.
        by_number = hasattr(frame, "iloc")
        column = frame.iloc[:, number] if by_number else frame[names[number]]
        cells[:, place] = column.tolist() if by_number else list(column)
    return cells, chosen is not None


def write_triples(path: str | os.PathLike[str], triples: Iterable[Sequence[str]]) -> None:
    r"""Writes label triples so that they are read back as they are.

    :func:`read_triples` gives back the same labels whatever they are with ``header=False`` and
    ``columns=(0, 1, 2)``, which say what it would otherwise tell from them.

    Args:
        path: The file, replaced as a whole where it exists.
        triples: The rows ``(head, relation, tail)``.

    Raises:
        DataError: If a label cannot stand in such a file: an empty one, or one with a tab, a line
            break or a NUL character.
        StorageError: If the file cannot be written. The old one is still there then.
    """
    write_bytes(path, format_triples(triples, os.fspath(path)))


def format_triples(triples: Iterable[Sequence[str]], source: str) -> bytes:
    r"""The content of a file of label triples; see :func:`write_triples`.

    Args:
        triples: The rows ``(head, relation, tail)``.
        source: The name of the file, for error messages.

    Raises:
        DataError: If a label cannot stand in such a file.
    """
    array = as_label_triples(triples)
    for row, labels in enumerate(array):
        for label in labels:
            if label == "" or any(character in label for character in "\t\n\r\0"):
                raise DataError(
                    f"{source}: label {label!r} of row {row} cannot be written: labels "
                    "must not be empty and hold no tab, line break or NUL character"
                )
    text = "".join("\t".join(labels) + "\n" for labels in array)
    # A leading mark would be taken for a byte order mark, so a real one is put before it.
    mark = BOM if text.startswith("\ufeff") else b""
    try:
        return mark + text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{source}: a label is not valid Unicode ({error})") from error
