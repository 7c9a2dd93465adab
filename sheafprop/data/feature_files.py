"""Files of features: text, Parquet and arrays."""

import io
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sheafprop.data.column_names import show_fields
from sheafprop.data.features import (
    GAPS,
    Column,
    FeatureTable,
    as_objects,
    is_number,
    of_frame,
    read_text_column,
)
from sheafprop.data.file_kinds import decompress, file_suffix, read_file, read_parquet
from sheafprop.data.property_graphs import node_columns, read_nodes, split_group
from sheafprop.data.text_rows import decode, iterate_rows
from sheafprop.data.triples import as_label
from sheafprop.errors import DataError
from sheafprop.files import label_file

# The header of a file in long form, with one value per line.
_LONG = ["entity", "property", "value"]


def read_features(path: Any) -> FeatureTable:
    """Reads features of entities from a file, compressed or not, or from a data frame.

    - ``.csv``, ``.tsv`` and other text: a header, then a row for each entity. The first column
      holds the labels. A column of numbers and empty cells (or ``NA``, ``NaN``, ``null``) is
      numeric. All other columns hold types; several types of a cell are separated by ``|`` or
      ``;``. If the header is ``entity``, ``property`` and ``value``, as ``sheafprop convert
      --literals`` writes it, each property becomes a column, and several numbers of an entity are
      averaged. The same holds for node files of Neo4j and KGX and for groups of them
      (``"header.csv,part.csv"``); their labels are those that the relationships use.
    - ``.parquet``: a data frame, see :meth:`FeatureTable.of`.
    - ``.npy``: a matrix. ``FILE.labels.json`` (a list, as ``export`` writes it) or
      ``FILE.labels.txt`` (one label per line) holds the labels of its rows. Rows with NaN are
      missing.

    Args:
        path: A file, or any input of :meth:`FeatureTable.of`.

    Raises:
        DataError: If the input cannot be read or is malformed. The message names the place.
    """
    if not isinstance(path, str | os.PathLike):
        return FeatureTable.of(path)
    source = os.fspath(path)
    if split_group(path) is not None:
        return _of_nodes(source)
    suffix = file_suffix(source)
    content = decompress(read_file(path), source)
    if suffix == ".npy":
        return _of_array(content, Path(path).expanduser(), source)
    if suffix == ".parquet":
        return of_frame(read_parquet(content, source), source)
    return _of_text(decode(content, source), source, suffix)


def _of_text(text: str, source: str, suffix: str) -> FeatureTable:
    first = text.partition("\n")[0]
    separator = "," if suffix == ".csv" or ("\t" not in first and "," in first) else "\t"
    if separator not in first:
        other = next((c for c in ";\t" if c in first), None) if suffix == ".csv" else None
        if other is None:
            raise DataError(
                f"{source}, line 1: expected a header that names the column of labels and at "
                f"least one feature, separated by {'commas' if separator == ',' else 'tabs'} (got "
                f"{first[:80]!r})"
            )
        separator = other
        warnings.warn(
            f"{source}: {other!r} is used as the delimiter, as in the first row",
            stacklevel=2,
        )
    rows: list[list[str]] = []
    numbers: list[int] = []
    for number, row in iterate_rows(text, source, separator):
        if not any(map(str.strip, row)):
            continue
        if not rows and node_columns(row) is not None:
            return _of_nodes(source)
        if rows and len(row) != len(rows[0]):
            raise DataError(
                f"{source}, line {number}: expected {len(rows[0])} fields, as the header has (got "
                f"{len(row)}: {show_fields(row)})"
            )
        rows.append(row)
        numbers.append(number)
    names, *rows = rows
    lines = np.array(numbers[1:], dtype=np.int64)
    if [name.strip().lower() for name in names] == _LONG:
        return _of_properties(rows, source, [f"{source}, line {line}" for line in lines])
    if len(names) > 1 and all(map(is_number, names[1:])):
        warnings.warn(
            f"{source}, line {numbers[0]}: the first line must hold the names of the columns, not "
            f"numbers (got {show_fields(names)}); if it describes an entity, add a header above it",
            stacklevel=2,
        )
    labels = tuple(row[0] for row in rows)
    columns = [
        read_text_column(
            name.strip(),
            [row[place] for row in rows],
            labels,
            lambda row: f"{source}, line {lines[row]}",
        )
        for place, name in enumerate(names)
        if place
    ]
    table = FeatureTable(labels, tuple(columns), source, lines, "line")
    table.warn()
    return table


def _of_nodes(source: str) -> FeatureTable:
    """Reads the properties of nodes as features."""
    _, columns, located = read_nodes(source)
    rows, places = [], []
    for number, row in enumerate(located.rows.tolist()):
        found = list(columns.literals(row))
        rows += found
        places += [located.place(number)] * len(found)
    return _of_properties(rows, source, places)


def _of_properties(
    rows: Sequence[Sequence[str]], source: str, places: Sequence[str]
) -> FeatureTable:
    """Builds features from rows of an entity, a property and a value."""
    place = {label: i for i, label in enumerate(dict.fromkeys(row[0] for row in rows))}
    found: dict[str, list[tuple[str, str, str]]] = {}
    for (label, name, value), at in zip(rows, places, strict=True):
        if value.strip().lower() not in GAPS:
            found.setdefault(name.strip(), []).append((label, value.strip(), at))
    columns = []
    for name, cells in found.items():
        # One row per cell, so that errors name the line.
        owners, texts, rows_of = zip(*cells, strict=True)
        column = read_text_column(name, texts, owners, rows_of.__getitem__, marks="")
        column.check(owners, rows_of.__getitem__)
        column.warn(owners, rows_of.__getitem__)
        owner = np.array([place[label] for label in owners])
        if column.kind == "number":
            total = np.bincount(owner, column.values, len(place))
            with np.errstate(invalid="ignore"):
                values = total / np.bincount(owner, minlength=len(place))
            columns.append(Column(name, "number", values))
            continue
        types: list[list[str]] = [[] for _ in place]
        for i, text in zip(owner.tolist(), texts, strict=True):
            types[i].append(text)
        joined = [tuple(dict.fromkeys(own)) or None for own in types]
        columns.append(Column(name, "types", as_objects(joined)))
    return FeatureTable(tuple(place), tuple(columns), source)


def _of_array(content: bytes, path: Path, source: str) -> FeatureTable:
    try:
        values = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{source}: not an array of numbers ({error})") from error
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise DataError(
            f"{source}: features must be a real matrix with one row per entity (got shape "
            f"{list(values.shape)} of {values.dtype})"
        )
    listed = label_file(path)
    lines = listed.with_suffix(".txt")
    if listed.is_file():
        try:
            given = json.loads(decode(read_file(listed), str(listed)))
        except ValueError as error:
            raise DataError(f"{listed}: not valid JSON ({error})") from error
        if not isinstance(given, list):
            raise DataError(f"{listed}: expected a list of labels")
    elif lines.is_file():
        given = decode(read_file(lines), str(lines)).removesuffix("\n").split("\n")
    else:
        raise DataError(f"{source}: the labels of the rows are missing: write {listed} or {lines}")
    if len(given) != len(values):
        raise DataError(
            f"{source}: every row needs one label (got {len(given)} labels and {len(values)} rows)"
        )
    labels = tuple(as_label(label, f"{source}: a label") for label in given)
    column = Column("vector", "vector", values.astype(np.float64))
    return FeatureTable(labels, (column,), source)
