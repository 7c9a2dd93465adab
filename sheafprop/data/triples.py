"""Reads and writes files of label triples."""

import os
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sheafprop.data.column_names import (
    LabelTriples,
    check_order,
    columns_by_name,
    recognize_columns,
    show_fields,
)
from sheafprop.data.file_kinds import (
    GRAPH_FORMATS,
    IRI_FORMATS,
    file_suffix,
    read_parquet,
    recognize_format,
)
from sheafprop.data.formats.facts import LiteralSink
from sheafprop.data.formats.reading import read_graph
from sheafprop.data.input_file import InputFile
from sheafprop.data.property_graphs import TableGroup, split_group
from sheafprop.data.read_options import ReadOptions
from sheafprop.data.text_rows import BOM, LocatedRows, decode, guess_delimiter, others
from sheafprop.data.triple_text import shorten_iris, text_triples
from sheafprop.errors import DataError
from sheafprop.files import write_bytes

#: Types of labels, see :func:`as_label`.
LABEL = str | int | np.integer


def as_label(value: Any, what: str = "a label") -> str:
    """Converts a label to text. Integers become decimal text.

    Raises:
        DataError: If the label is neither a string nor an integer, such as a float or a Boolean.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise DataError(
        f"{what} must be a string or an integer (got {value!r}){_reason({type(value)})}"
    )


def as_label_triples(triples: Iterable[Sequence[Any]], source: str = "triples") -> LabelTriples:
    r"""Converts rows of three labels to an object array of strings of shape ``[m, 3]``.

    Integers are converted to decimal text: 7 is the label ``"7"``.

    Args:
        triples: The rows ``(head, relation, tail)`` as a sequence, an array or a data frame of
            pandas or polars, see :func:`frame_triples`.
        source: The name in error messages.

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
                raise DataError(
                    f"{source}: a triple must have 3 labels (got {row!r} in row {number})"
                )
    array = np.asarray(rows, dtype=object)
    if array.shape != (len(rows), 3):
        raise DataError(f"{source}: label triples must have shape [m, 3] (got {list(array.shape)})")
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
            ". A float is not a label, as 3.0 and 3 would be different ones: a column of integers "
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
    prefixes: Any = None,
    allow_empty: bool = False,
    known: Container[str] = (),
) -> LabelTriples:
    r"""Reads triples from a file, by default from lines ``head<TAB>relation<TAB>tail``.

    Text must be UTF-8, with or without a byte order mark. Lines end in LF or CRLF; the last line
    end may be missing. Blank lines are skipped. Labels are literal: quotes, commas, surrounding
    spaces and texts such as ``NA`` or ``1.0`` are not interpreted. Files compressed by gzip, bzip2,
    xz or Zstandard are decompressed.

    A header of usual names (``head relation tail``, ``subject predicate object``,
    ``source relation target``, ``h r t``, ``s p o``, in any order and among other columns) selects
    the columns. Two probable mistakes are errors unless an option rules them out: a first line
    whose fields occur nowhere else (``header``), and relation labels that are mostly entities
    (``columns``).

    In ontologies, alternative ids and the ids of replaced terms are replaced by their terms.

    Args:
        path: The file. Tables with a common header are given together as ``"header.csv,part.csv"``,
            with the header in the first file. Relationships of Neo4j without a column of types are
            given with their type, as ``"KNOWS=part.csv"``.
        columns: The columns of head, relation and tail, by numbers from 0 on or by the names in the
            header, as a sequence or as text such as ``"0,1,2"``. (default: by the usual names of a
            header, else every line must have exactly three fields)
        header: Whether the first line is a header: True or ``"yes"``, False or ``"no"``, None or
            ``"auto"``.
        delimiter: The character between fields. Unless it is the tab, fields may be quoted.
            (default: the comma in CSV, else the tab)
        format: ``"tsv"``, ``"csv"``, ``"parquet"``, ``"ntriples"``, ``"nquads"``, ``"turtle"``,
            ``"trig"``, ``"rdfxml"``, ``"obo"`` or ``"jsonl"``. By default inferred from the first
            lines and the name, without the suffix of a compression; else TSV. A warning counts what
            is skipped in a graph format, such as literals.
        prefixes: The prefixes that shorten IRIs, see :class:`~sheafprop.data.Prefixes`. If given,
            IRIs in tables are shortened too. (default: ``"common"``, only for RDF)
        allow_empty: Whether to accept a file without triples.
        known: Known labels. A first line with one of them is not a header.

    Returns:
        An object array of strings of shape ``[m, 3]``, in the order of the file.

    Raises:
        DataError: If a line is malformed (the message has file, line number and content), or the
            file is truncated, is not UTF-8 text, has another format or holds no triple.
        ValueError: If an option is not valid.
    """
    options = ReadOptions.of(columns, header, delimiter, format, prefixes)
    return read_located(path, options=options, allow_empty=allow_empty, known=known).rows


def read_located(
    path: str | os.PathLike[str] | InputFile,
    *,
    known: Container[str] = (),
    literals: LiteralSink | None = None,
    allow_empty: bool = False,
    options: ReadOptions | None = None,
    **given: Any,
) -> LocatedRows:
    """Reads triples with their line numbers, see :func:`read_triples`.

    Args:
        path: The file.
        known: Known labels.
        literals: Receives the literals of a graph format and the properties of nodes, as entity,
            property and value.
        allow_empty: Whether to accept a file without triples.
        options: The options of reading.
        **given: The fields of :class:`ReadOptions`, instead of ``options``.
    """
    chosen = ReadOptions.of(**given) if options is None else options
    group = None if isinstance(path, InputFile) else split_group(path)
    if group is None:
        file = path if isinstance(path, InputFile) else InputFile(path)
        return _parse(file, chosen, allow_empty, known, literals)
    files = map(InputFile, group.files)
    found = LocatedRows.join([_parse(file, chosen, True, known, literals, group) for file in files])
    if not len(found) and not allow_empty:
        raise DataError(f"{', '.join(group.files)}: the files hold no triples")
    return found


def file_format(file: InputFile, options: ReadOptions) -> str:
    """Returns the given format, or infers it from the name and the first lines.

    Raises:
        DataError: If the format cannot be read.
    """
    if options.format != "auto":
        return options.format
    suffix = file_suffix(file.source)
    if suffix == ".parquet":
        return "parquet"
    found = recognize_format(file.head(), file.source)
    return found or ("csv" if suffix == ".csv" else "tsv")


def holds_triples(path: str | os.PathLike[str], **options: Any) -> bool:
    """Whether a file has a graph format, or a line with three fields."""
    chosen, file = ReadOptions.of(**options), InputFile(path)
    format = file_format(file, chosen)
    if format in GRAPH_FORMATS or format == "parquet":
        return True
    character = chosen.delimiter or ("," if format == "csv" else "\t")
    with file.open() as stream:
        lines = decode(stream.read(), file.source).split("\n")
    return any(line.count(character) >= 2 for line in lines)


def parse_triples(
    content: bytes,
    source: str,
    *,
    allow_empty: bool = False,
    known: Container[str] = (),
    **reading: Any,
) -> LabelTriples:
    r"""Parses the bytes of a file of triples, see :func:`read_triples`.

    Args:
        content: The bytes.
        source: The name of the file, for error messages and for its format.
        allow_empty, known: See :func:`read_triples`.
        **reading: ``columns``, ``header``, ``delimiter``, ``format`` and ``prefixes``, see
            :func:`read_triples`.

    Raises:
        DataError: As :func:`read_triples`.
        ValueError: If an option is not valid.
    """
    options = ReadOptions.of(**reading)
    return _parse(InputFile(source, content), options, allow_empty, known).rows


def _parse(
    file: InputFile,
    options: ReadOptions,
    allow_empty: bool,
    known: Container[str],
    literals: LiteralSink | None = None,
    group: TableGroup | None = None,
) -> LocatedRows:
    format, source = file_format(file, options), file.source
    if format in GRAPH_FORMATS:
        located = read_graph(file, format, options, literals)
    elif format == "parquet":
        with file.open(progress=True) as stream:
            frame = read_parquet(stream.read(), source)
        triples = frame_triples(frame, source, options.columns)
        located = LocatedRows.number(triples, f"{source}, row")
    else:
        with file.open(progress=True) as stream:
            text = decode(stream.read(), source)
        delimiter = options.delimiter or (group and group.delimiter) or "\t"
        if delimiter == "\t" and options.delimiter is None and format == "csv":
            delimiter = guess_delimiter(text, source)
        lines, triples, _ = text_triples(
            text, source, options, delimiter, known, literals=literals, group=group
        )
        located = LocatedRows(triples, ((f"{source}, line", lines),))
    if format not in IRI_FORMATS:
        located = replace(located, rows=shorten_iris(located.rows, source, options))
    if len(located) == 0 and not allow_empty:
        raise DataError(f"{source}: the file holds no triples ({file.size} bytes)")
    return located


def is_frame(value: Any) -> bool:
    """Whether a value is a data frame, that is, has named columns."""
    return hasattr(value, "columns") and hasattr(value, "__getitem__")


def frame_triples(frame: Any, source: str, columns: Any = None) -> LabelTriples:
    r"""Returns the label triples of a data frame of pandas or polars.

    Args:
        frame: A data frame whose columns have usual names (see :func:`read_triples`), or with three
            columns in the order head, relation, tail.
        source: The name in error messages.
        columns: The columns of head, relation and tail, by number or by name.

    Raises:
        DataError: If the columns cannot be identified, a label is neither a string nor an integer,
            or most relation labels also occur as entities.
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
    """Returns the cells of the three columns, and whether the columns were found by name."""
    names = list(frame.columns)
    chosen: Any = ReadOptions.of(columns).columns
    chosen = recognize_columns(names) if chosen is None else columns_by_name(chosen, names, source)
    if chosen is None and len(names) != 3:
        raise DataError(
            f"{source} needs the columns head, relation and tail, or three columns (got "
            f"{', '.join(map(str, names[:8]))}). Rename them, or select three columns (--columns "
            "0,1,2 or --columns NAME,NAME,NAME)"
        )
    cells = np.empty((len(frame), 3), dtype=object)
    for place, number in enumerate(chosen or (0, 1, 2)):
        # By number where names may repeat; both give Python's own values.
        by_number = hasattr(frame, "iloc")
        column = frame.iloc[:, number] if by_number else frame[names[number]]
        cells[:, place] = column.tolist() if by_number else list(column)
    return cells, chosen is not None


def write_triples(path: str | os.PathLike[str], triples: Iterable[Sequence[str]]) -> None:
    r"""Writes label triples as lines ``head<TAB>relation<TAB>tail``.

    :func:`read_triples` with ``header=False`` and ``columns=(0, 1, 2)`` reads back the same labels
    in all cases.

    Args:
        path: The file. An existing file is replaced atomically.
        triples: The rows ``(head, relation, tail)``.

    Raises:
        DataError: If a label is empty, or holds a tab, a line break or a NUL character.
        StorageError: If the file cannot be written. An existing file is then unchanged.
    """
    write_bytes(path, format_triples(triples, os.fspath(path)))


def format_triples(triples: Iterable[Sequence[str]], source: str) -> bytes:
    r"""Formats label triples as the content of a file, see :func:`write_triples`.

    Args:
        triples: The rows ``(head, relation, tail)``.
        source: The name of the file, for error messages.

    Raises:
        DataError: If a label cannot be written.
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
    # A leading U+FEFF would be read as a byte order mark, so a byte order mark is added.
    mark = BOM if text.startswith("\ufeff") else b""
    try:
        return mark + text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{source}: a label is not valid Unicode ({error})") from error
