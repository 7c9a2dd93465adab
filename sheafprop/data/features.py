"""Features of entities as users have them: numbers, types and vectors, with gaps."""

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sheafprop.checks import count_noun, quote
from sheafprop.data.column_names import show_fields
from sheafprop.data.file_kinds import decompress, file_suffix, read_file, read_parquet
from sheafprop.data.text_rows import decode
from sheafprop.data.triples import as_label
from sheafprop.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Column", "FeatureTable", "read_features"]

#: Cells of a text file that are gaps in a column of numbers, in lower case.
_GAPS = frozenset(("", "na", "n/a", "nan", "null", "none", "-"))
#: Characters between the types of a cell, the first one that occurs in the column.
_BETWEEN = "|;"
# The header of a file with a line for each value.
_LONG = ["entity", "property", "value"]
Kind = Literal["number", "types", "vector"]


@dataclass(frozen=True, eq=False)
class Column:
    """One feature of some entities.

    Args:
        name (str): Its name.
        kind (str): ``"number"``, ``"types"`` (any number of words for each entity) or ``"vector"``.
        values (ndarray): ``[n]`` or, of vectors, ``[n, m]`` in double precision with NaN in the
            gaps; of types, ``[n]`` tuples of str, with None in the gaps.
    """

    name: str
    kind: Kind
    values: NDArray[Any]

    def present(self) -> NDArray[np.bool_]:
        """Which entities have it, bool ``[n]``."""
        if self.kind == "types":
            return np.array([value is not None for value in self.values], dtype=bool)
        rows = self.values if self.values.ndim > 1 else self.values[:, None]
        present: NDArray[np.bool_] = ~np.isnan(rows).any(axis=1)
        return present

    def select(self, rows: NDArray[Any]) -> "Column":
        """The same feature of some entities."""
        return Column(self.name, self.kind, self.values[rows])


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features of entities, a row for each label.

    Args:
        labels (tuple of str): The labels of the entities, each once.
        columns (tuple of Column): Their features, each of another name.
        source (str): Where they come from, for messages.

    Raises:
        DataError: If a label or a name occurs twice or is empty, there is no column, or a number is
            infinite.
    """

    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    source: str = "the features"

    def __post_init__(self) -> None:
        if not self.columns:
            raise DataError(f"{self.source}: there is no column of features beside the labels")
        rows: dict[str, int] = {}
        for row, label in enumerate(self.labels):
            if label == "":
                raise DataError(f"{self.source}: row {row} has an empty label")
            if (other := rows.setdefault(label, row)) != row:
                raise DataError(
                    f"{self.source}: every label must have one row (got {quote(label)} in rows "
                    f"{other} and {row}); join the rows, types of one cell with '|'"
                )
        names = [column.name for column in self.columns]
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(f"{self.source}: the column {twice[0]!r} is there several times")
        for column in self.columns:
            if column.kind != "types" and bool(np.isinf(column.values).any()):
                row = int(np.argwhere(np.isinf(column.values))[0, 0])
                raise DataError(
                    f"{self.source}: the column {column.name!r} is infinite at "
                    f"{quote(self.labels[row])}; leave the cell empty where it is not known"
                )
        object.__setattr__(self, "_rows", rows)

    @classmethod
    def of(cls, features: Any, source: str = "the features") -> "FeatureTable":
        """Builds a table from a file (see :func:`read_features`) or a frame of pandas or polars.

        The labels are the index of the frame or, if that is a numbering, its first column. Columns
        of numbers and truth values are numbers, lists of numbers and arrays vectors, and text and
        lists of text types; several types in a text are separated by ``|`` or ``;``.

        Raises:
            DataError: If it is none of these, or as above.
        """
        if isinstance(features, cls):
            return features
        if isinstance(features, str | os.PathLike):
            return read_features(features)
        if hasattr(features, "to_pandas"):
            features = features.to_pandas()
        if not (hasattr(features, "columns") and hasattr(features, "index")):
            raise DataError(
                "features must be a file or a frame of pandas or polars with a row for each entity "
                f"(got {type(features).__name__})"
            )
        return _of_frame(features, source)

    def lookup(self, labels: Sequence[str]) -> NDArray[np.int64]:
        """The rows of labels, -1 where there is none, ``[n]``."""
        rows: dict[str, int] = vars(self)["_rows"]
        return np.fromiter((rows.get(label, -1) for label in labels), np.int64, len(labels))

    def select(self, labels: Sequence[str]) -> "FeatureTable":
        """The features of the labels that have a row, in the order of ``labels``."""
        rows = self.lookup(labels)
        kept = tuple(label for label, row in zip(labels, rows.tolist(), strict=True) if row >= 0)
        rows = rows[rows >= 0]
        return FeatureTable(kept, tuple(c.select(rows) for c in self.columns), self.source)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{column.name}: {column.kind}" for column in self.columns[:6])
        more = ", ..." if len(self.columns) > 6 else ""
        return f"{type(self).__name__}({count_noun(len(self), 'entity')}, {kinds}{more})"


def read_features(path: str | os.PathLike[str]) -> FeatureTable:
    """Reads the features of entities from a file, which may be compressed.

    - ``.csv``, ``.tsv`` and other text: a header, then a row for each entity, whose label is the
      first column. A column whose cells are all numbers or empty (or ``NA``, ``NaN``, ``null``) is
      one of numbers; others are types, several of them separated by ``|`` or ``;``. A header of
      ``entity``, ``property`` and ``value``, as ``sheafprop convert --literals`` writes it, makes a
      column of each property; several numbers of one entity count by their mean.
    - ``.parquet``: a frame, as :meth:`FeatureTable.of` takes it.
    - ``.npy``: a matrix, with the labels of its rows in ``FILE.labels.json`` (a list, as ``export``
      writes it) or ``FILE.labels.txt`` (a label in each line). Rows with NaN are gaps.

    Args:
        path: The file.

    Raises:
        DataError: If it cannot be read, or is malformed; names the place.
    """
    source = os.fspath(path)
    suffix = file_suffix(source)
    content = decompress(read_file(path), source)
    if suffix == ".npy":
        return _of_array(content, Path(path).expanduser(), source)
    if suffix == ".parquet":
        return _of_frame(read_parquet(content, source), source)
    return _of_text(decode(content, source), source, suffix)


def _of_text(text: str, source: str, suffix: str) -> FeatureTable:
    first = text.partition("\n")[0]
    separator = "," if suffix == ".csv" or ("\t" not in first and "," in first) else "\t"
    if separator not in first:
        raise DataError(
            f"{source}, line 1: expected a header of the labels' column and one feature at least, "
            f"between {'commas' if separator == ',' else 'tabs'} (got {first[:80]!r})"
        )
    # Quotation marks between tabs are literal, as in triples.
    quoting: Any = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    rows: list[list[str]] = []
    try:
        for row in reader:
            if not any(map(str.strip, row)):
                continue
            if rows and len(row) != len(rows[0]):
                raise DataError(
                    f"{source}, line {reader.line_num}: expected {len(rows[0])} fields, as the "
                    f"header has (got {len(row)}: {show_fields(row)})"
                )
            rows.append(row)
    except csv.Error as error:
        raise DataError(f"{source}, line {reader.line_num}: {error}") from error
    names, *rows = rows
    if [name.strip().lower() for name in names] == _LONG:
        return _of_properties(rows, source)
    columns = [
        _text_column(name.strip(), [row[place] for row in rows])
        for place, name in enumerate(names)
        if place
    ]
    return FeatureTable(tuple(row[0] for row in rows), tuple(columns), source)


def _of_properties(rows: Sequence[Sequence[str]], source: str) -> FeatureTable:
    """Features of rows of an entity, a property and a value."""
    place = {label: i for i, label in enumerate(dict.fromkeys(row[0] for row in rows))}
    found: dict[str, dict[int, list[str]]] = {}
    for label, name, value in rows:
        if value.strip().lower() not in _GAPS:
            found.setdefault(name.strip(), {}).setdefault(place[label], []).append(value.strip())
    columns = []
    for name, cells in found.items():
        try:
            numbers = np.full(len(place), np.nan)
            for i, values in cells.items():
                numbers[i] = np.mean([float(value) for value in values])
            columns.append(Column(name, "number", numbers))
        except ValueError:
            types = [tuple(dict.fromkeys(cells[i])) if i in cells else None for i in place.values()]
            columns.append(Column(name, "types", _objects(types)))
    return FeatureTable(tuple(place), tuple(columns), source)


def _of_array(content: bytes, path: Path, source: str) -> FeatureTable:
    try:
        values = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{source}: this is not an array of numbers ({error})") from error
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
            raise DataError(f"{listed}: this is not JSON ({error})") from error
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


def _of_frame(frame: "pd.DataFrame", source: str) -> FeatureTable:
    import pandas as pd

    if isinstance(frame.index, pd.RangeIndex):
        if not len(frame.columns):
            raise DataError(f"{source}: there is no column")
        cells, frame = frame.iloc[:, 0], frame.iloc[:, 1:]
    else:
        cells = frame.index
    labels = tuple(as_label(label, f"{source}: a label") for label in cells)
    columns = [
        _column(str(name), frame.iloc[:, place], source, labels)
        for place, name in enumerate(frame.columns)
    ]
    return FeatureTable(labels, tuple(columns), source)


def _column(name: str, cells: "pd.Series", source: str, labels: Sequence[str]) -> Column:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_bool_dtype(cells):
        return Column(name, "number", cells.astype("Float64").to_numpy(np.float64, np.nan))
    if pd.api.types.is_datetime64_any_dtype(cells):
        days = (cells - pd.Timestamp(0, tz=cells.dt.tz)) / pd.Timedelta(days=1)
        return Column(name, "number", days.to_numpy(np.float64))
    values = [None if _is_gap(cell) else cell for cell in cells]
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, str) for value in given):
        return _text_column(name, values)
    if given and all(
        isinstance(value, list | tuple | set | frozenset | np.ndarray) for value in given
    ):
        if any(isinstance(item, str) for value in given for item in value):
            types = [None if v is None else tuple(dict.fromkeys(map(str, v))) for v in values]
            return Column(name, "types", _objects(types))
        return _vector_column(name, values, source, labels)
    try:
        numbers = [np.nan if value is None else float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{source}: the column {name!r} holds neither numbers nor text nor lists of one of "
            f"them ({error})"
        ) from error
    return Column(name, "number", np.array(numbers, dtype=np.float64))


def _text_column(name: str, values: Sequence[str | None]) -> Column:
    texts = ["" if value is None else value.strip() for value in values]
    gaps = [text.lower() in _GAPS for text in texts]
    try:
        numbers = [np.nan if gap else float(text) for text, gap in zip(texts, gaps, strict=True)]
        if not all(gaps):
            return Column(name, "number", np.array(numbers, dtype=np.float64))
    except ValueError:
        pass
    mark = next((mark for mark in _BETWEEN if any(mark in text for text in texts)), None)
    types: list[tuple[str, ...] | None] = []
    for text in texts:
        words = (word.strip() for word in (text.split(mark) if mark else [text]))
        types.append(tuple(dict.fromkeys(word for word in words if word)) or None)
    return Column(name, "types", _objects(types))


def _vector_column(name: str, values: Sequence[Any], source: str, labels: Sequence[str]) -> Column:
    width = next(len(value) for value in values if value is not None)
    out = np.full((len(values), width), np.nan)
    for row, value in enumerate(values):
        if value is None:
            continue
        if len(value) != width:
            raise DataError(
                f"{source}: the vectors of {name!r} must have one length (got {width} and, at "
                f"{quote(labels[row])}, {len(value)})"
            )
        out[row] = np.asarray(value, dtype=np.float64)
    return Column(name, "vector", out)


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _is_gap(cell: Any) -> bool:
    if cell is None:
        return True
    return (isinstance(cell, float) and cell != cell) or type(cell).__name__ in (
        "NAType",
        "NaTType",
    )
