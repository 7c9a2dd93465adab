"""Files of features: text, Parquet and arrays."""

import io
import json
import os
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sheafprop.data.column_names import show_fields
from sheafprop.data.features import (
    GAPS,
    Column,
    FeatureTable,
    as_objects,
    is_number,
    locate,
    of_frame,
    read_text_column,
)
from sheafprop.data.file_kinds import decompress, file_suffix, read_file, read_parquet
from sheafprop.data.text_rows import decode, iterate_rows
from sheafprop.data.triples import as_label
from sheafprop.errors import DataError

__all__ = ["read_features"]

# The header of a file with a line for each value.
_LONG = ["entity", "property", "value"]


def read_features(path: Any) -> FeatureTable:
    """Reads the features of entities from a file, which may be compressed, or from a frame.

    - ``.csv``, ``.tsv`` and other text: a header, then a row for each entity, whose label is the
      first column. A column whose cells are all numbers or empty (or ``NA``, ``NaN``, ``null``) is
      one of numbers; others are types, several of them separated by ``|`` or ``;``. A header of
      ``entity``, ``property`` and ``value``, as ``sheafprop convert --literals`` writes it, makes a
      column of each property; several numbers of one entity count by their mean.
    - ``.parquet``: a frame, as :meth:`FeatureTable.of` takes it.
    - ``.npy``: a matrix, with the labels of its rows in ``FILE.labels.json`` (a list, as ``export``
      writes it) or ``FILE.labels.txt`` (a label in each line). Rows with NaN are gaps.

    Args:
        path: The file, or what :meth:`FeatureTable.of` takes.

    Raises:
        DataError: If it cannot be read, or is malformed; names the place.
    """
    if not isinstance(path, str | os.PathLike):
        return FeatureTable.of(path)
    source = os.fspath(path)
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
        raise DataError(
            f"{source}, line 1: expected a header of the labels' column and one feature at least, "
            f"between {'commas' if separator == ',' else 'tabs'} (got {first[:80]!r})"
        )
    rows: list[list[str]] = []
    numbers: list[int] = []
    for number, row in iterate_rows(text, source, separator):
        if not any(map(str.strip, row)):
            continue
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
        return _of_properties(rows, source, lines)
    if len(names) > 1 and all(map(is_number, names[1:])):
        warnings.warn(
            f"{source}, line {numbers[0]}: the first line is taken for the names of the columns, "
            f"and they are numbers (got {show_fields(names)}); give the file a header if this is "
            "an entity",
            stacklevel=2,
        )
    labels = tuple(row[0] for row in rows)
    columns = [
        read_text_column(name.strip(), [row[place] for row in rows], source, labels, lines)
        for place, name in enumerate(names)
        if place
    ]
    table = FeatureTable(labels, tuple(columns), source, lines)
    table.warn()
    return table


def _of_properties(rows: Sequence[Sequence[str]], source: str, lines: NDArray[Any]) -> FeatureTable:
    """Features of rows of an entity, a property and a value."""
    place = {label: i for i, label in enumerate(dict.fromkeys(row[0] for row in rows))}
    found: dict[str, list[tuple[str, str, int]]] = {}
    for (label, name, value), line in zip(rows, lines.tolist(), strict=True):
        if value.strip().lower() not in GAPS:
            found.setdefault(name.strip(), []).append((label, value.strip(), line))
    columns = []
    for name, cells in found.items():
        # A row for each cell, so that a fault is named with its line.
        owners, texts, numbers = zip(*cells, strict=True)
        at = np.array(numbers)
        column = read_text_column(name, texts, source, owners, at, marks="")
        place_of = partial(locate, source, at)
        column.check(owners, place_of)
        column.warn(owners, place_of)
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
        raise DataError(f"{source}: this is no array of numbers ({error})") from error
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise DataError(
            f"{source}: features must be a matrix of real numbers with a row for each entity (got "
            f"{list(values.shape)} of {values.dtype})"
        )
    listed, lines = (path.with_name(f"{path.name}.labels.{end}") for end in ("json", "txt"))
    if listed.is_file():
        try:
            given = json.loads(decode(read_file(listed), str(listed)))
        except ValueError as error:
            raise DataError(f"{listed}: this is no JSON ({error})") from error
        if not isinstance(given, list):
            raise DataError(f"{listed}: expected a list of labels")
    elif lines.is_file():
        given = decode(read_file(lines), str(lines)).removesuffix("\n").split("\n")
    else:
        raise DataError(f"{source}: the labels of the rows are missing: write {listed} or {lines}")
    if len(given) != len(values):
        raise DataError(
            f"{source}: there must be a label for each row (got {len(given)} labels and "
            f"{len(values)} rows)"
        )
    labels = tuple(as_label(label, f"{source}: a label") for label in given)
    column = Column("vector", "vector", values.astype(np.float64))
    return FeatureTable(labels, (column,), source)
