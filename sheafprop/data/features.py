"""Features of entities: numbers, types and vectors, possibly missing."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sheafprop.checks import count_noun, quote
from sheafprop.data.triples import as_label
from sheafprop.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Column",
    "FeatureTable",
    "as_objects",
    "as_types",
    "is_number",
    "of_frame",
    "read_text_column",
]

#: Cells of a text file that mark missing numbers, in lower case.
GAPS = frozenset(("", "na", "n/a", "nan", "null", "none", "-"))
#: Separators of the types of a cell; a column uses the first one that occurs in it.
BETWEEN = "|;"
#: Absolute values that often mark missing numbers.
_STAND_INS = (99, 999, 9999, 99999, 999999)
#: Number of training entities with features needed to fit a map from features to vectors.
FEWEST = 3
Kind = Literal["number", "types", "vector"]


@dataclass(frozen=True, eq=False)
class Column:
    """One feature of ``n`` entities.

    Args:
        name (str): The name.
        kind (str): ``"number"``, ``"types"`` (any number of words per entity) or ``"vector"``.
        values (ndarray): Numbers ``[n]`` or vectors ``[n, m]`` in double precision, NaN if missing;
            for types, tuples of str ``[n]``, None if missing.
        texts (ndarray, optional): The text cells of numbers, ``[n]``.
    """

    name: str
    kind: Kind
    values: NDArray[Any]
    texts: NDArray[Any] | None = None

    def present(self) -> NDArray[np.bool_]:
        """Returns a mask of the entities that have the feature, bool ``[n]``."""
        if self.kind == "types":
            return np.array([value is not None for value in self.values], dtype=bool)
        rows = self.values if self.values.ndim > 1 else self.values[:, None]
        present: NDArray[np.bool_] = ~np.isnan(rows).any(axis=1)
        return present

    def select(self, rows: NDArray[Any]) -> "Column":
        """Returns the feature of the given rows."""
        texts = None if self.texts is None else self.texts[rows]
        return Column(self.name, self.kind, self.values[rows], texts)

    def check(self, labels: Sequence[str], place: Callable[[int], str]) -> None:
        """Checks that no number is infinite.

        Args:
            labels (sequence of str): The labels of the rows.
            place: Maps a row to its description for messages.

        Raises:
            DataError: If a number is infinite.
        """
        if self.kind == "types" or not bool(np.isinf(self.values).any()):
            return
        row, *rest = np.argwhere(np.isinf(self.values))[0].tolist()
        raise DataError(
            f"{place(row)}: the column {self.name!r} must hold finite numbers (got "
            f"{self.values[(row, *rest)]} at {quote(labels[row])}); leave the cells of missing "
            "numbers empty"
        )

    def warn(self, labels: Sequence[str], place: Callable[[int], str]) -> None:
        """Warns about numbers such as -999, far from all others, that may mark missing values."""
        sizes = np.abs(self.values) if self.kind == "number" else np.zeros(0)
        for value in np.unique(self.values[np.isin(sizes, _STAND_INS)]) if sizes.size else ():
            others = self.values[np.isfinite(sizes) & ~np.isin(sizes, _STAND_INS)]
            low, high = (others.min(), others.max()) if len(others) > 1 else (value, value)
            if max(value - high, low - value) > max(high - low, abs(high), abs(low)):
                row, *more = np.flatnonzero(self.values == value).tolist()
                warnings.warn(
                    f"{place(row)}: {self.name!r} is {value:g} at {quote(labels[row])}"
                    f"{f' and {len(more)} more' if more else ''}, and all others lie between "
                    f"{low:g} and {high:g}; if it marks a missing number, leave the cell empty",
                    stacklevel=2,
                )


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features of entities, one row per label.

    Args:
        labels (tuple of str): The labels of the entities, without duplicates.
        columns (tuple of Column): The features, with distinct names.
        source (str): The name of the source for messages.
        numbers (ndarray, optional): The numbers of the rows in the source, ``[n]``. (default: from
            0 on)
        word (str): What the numbers count, ``"row"`` or ``"line"``.

    Raises:
        DataError: If a label or a name is empty or occurs twice, a number is infinite, or there is
            no column.
    """

    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    source: str = "the features"
    numbers: NDArray[Any] | None = None
    word: str = "row"

    def __post_init__(self) -> None:
        if not self.columns:
            raise DataError(f"{self.source}: at least one column of features is needed")
        rows: dict[str, int] = {}
        for row, label in enumerate(self.labels):
            if label == "":
                raise DataError(f"{self.place(row)}: the label is empty")
            if (other := rows.setdefault(label, row)) != row:
                raise DataError(
                    f"{self.place(row)}: every label must have one row (got {quote(label)} again, "
                    f"after {self.place(other)}); merge the rows, joining types with '|'"
                )
        names = [column.name for column in self.columns]
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(f"{self.source}: the column {twice[0]!r} exists more than once")
        for column in self.columns:
            column.check(self.labels, self.place)
        object.__setattr__(self, "_rows", rows)

    @classmethod
    def of(cls, features: Any, source: str = "the features") -> "FeatureTable":
        """Builds a table from a data frame of pandas or polars.

        The labels are the index of the frame or, if the index only numbers the rows, its first
        column. Numbers and Booleans become numbers, lists of numbers and arrays become vectors, and
        text and lists of text become types; several types in a text are separated by ``|`` or
        ``;``. :func:`~sheafprop.data.read_features` also reads files.

        Raises:
            DataError: If the input is not a data frame, or its content is not valid.
        """
        if isinstance(features, cls):
            return features
        if hasattr(features, "to_pandas"):
            features = features.to_pandas()
        if not (hasattr(features, "columns") and hasattr(features, "index")):
            rows = "; give rows of a tensor by DataFrame({'x': list(x.numpy())}, index=labels)"
            raise DataError(
                "features must be a file or a data frame of pandas or polars, one row per entity "
                f"(got {type(features).__name__}){rows if hasattr(features, 'shape') else ''}"
            )
        return of_frame(features, source)

    def place(self, row: int) -> str:
        """Describes where a row is, for messages."""
        number = row if self.numbers is None else self.numbers[row]
        return f"{self.source}, {self.word} {number}"

    def warn(self) -> None:
        """Warns about all columns, see :meth:`Column.warn`."""
        for column in self.columns:
            column.warn(self.labels, self.place)

    def lookup(self, labels: Sequence[str]) -> NDArray[np.int64]:
        """Returns the rows of labels, -1 for unknown labels, ``[n]``."""
        rows: dict[str, int] = vars(self)["_rows"]
        return np.fromiter((rows.get(label, -1) for label in labels), np.int64, len(labels))

    def select(self, labels: Sequence[str]) -> "FeatureTable":
        """Returns the rows of the known ones of ``labels``, in that order."""
        rows = self.lookup(labels)
        kept = tuple(label for label, row in zip(labels, rows.tolist(), strict=True) if row >= 0)
        rows = rows[rows >= 0]
        numbers = rows if self.numbers is None else self.numbers[rows]
        columns = tuple(column.select(rows) for column in self.columns)
        return FeatureTable(kept, columns, self.source, numbers, self.word)

    def key(self) -> str:
        """Returns a hash of labels and values that does not depend on the order of rows."""
        order = sorted(range(len(self)), key=self.labels.__getitem__)
        digest = hashlib.sha256(json.dumps([self.labels[row] for row in order]).encode())
        for column in sorted(self.columns, key=lambda column: column.name):
            values = column.values[order]
            digest.update(json.dumps([column.name, column.kind, values.shape]).encode())
            if column.kind == "types":
                cells = [value if value is None else sorted(set(value)) for value in values]
                digest.update(json.dumps(cells).encode())
            else:
                digest.update(np.where(np.isnan(values), np.nan, values).tobytes())
        return digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{column.name}: {column.kind}" for column in self.columns[:6])
        more = ", ..." if len(self.columns) > 6 else ""
        return f"{type(self).__name__}({count_noun(len(self), 'entity')}, {kinds}{more})"


def of_frame(frame: "pd.DataFrame", source: str) -> FeatureTable:
    import pandas as pd

    if isinstance(frame.index, pd.RangeIndex):
        if not len(frame.columns):
            raise DataError(f"{source}: the data frame has no columns")
        cells, frame = frame.iloc[:, 0], frame.iloc[:, 1:]
        if pd.api.types.is_float_dtype(cells):
            raise DataError(
                f"{source}: the labels of the entities are missing. Give them as the index of the "
                "data frame or as its first column"
            )
    else:
        cells = frame.index
    labels = tuple(as_label(label, f"{source}: a label") for label in cells)
    columns = [
        _column(str(name), frame.iloc[:, place], source, labels)
        for place, name in enumerate(frame.columns)
    ]
    table = FeatureTable(labels, tuple(columns), source)
    table.warn()
    return table


def _column(name: str, cells: "pd.Series", source: str, labels: Sequence[str]) -> Column:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_bool_dtype(cells):
        return Column(name, "number", cells.astype("Float64").to_numpy(np.float64, np.nan))
    if pd.api.types.is_datetime64_any_dtype(cells):
        days = (cells - pd.Timestamp(0, tz=cells.dt.tz)) / pd.Timedelta(days=1)
        return Column(name, "number", days.to_numpy(np.float64))
    values = [None if is_missing(cell) else cell for cell in cells]
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, str) for value in given):
        return read_text_column(name, values, labels, lambda row: f"{source}, row {row}")
    if given and all(
        isinstance(value, list | tuple | set | frozenset | np.ndarray) for value in given
    ):
        if any(isinstance(item, str) for value in given for item in value):
            types = [None if v is None else tuple(dict.fromkeys(map(str, v))) for v in values]
            return Column(name, "types", as_objects(types))
        return _vector_column(name, values, source, labels)
    numbers = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        try:
            numbers[row] = np.nan if value is None else float(value)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{source}, row {row}: the column {name!r} must hold only numbers, only text, or "
                f"lists of one of these (got {quote(str(value)[:40])} at {quote(labels[row])})"
            ) from error
    return Column(name, "number", numbers)


def read_text_column(
    name: str,
    values: Sequence[str | None],
    labels: Sequence[str],
    place: Callable[[int], str],
    marks: str = BETWEEN,
) -> Column:
    """Parses a column of text cells: as numbers if all cells are, otherwise as types.

    Args:
        name (str): The name.
        values (sequence of str): The cells, None if missing.
        labels (sequence of str): The labels of the rows.
        place: Maps a row to its description for messages.
        marks (str): Separators of types. The first one that occurs is used.

    Raises:
        DataError: If most cells, but not all of them, are numbers.
    """
    texts = ["" if value is None else value.strip() for value in values]
    given = [row for row, text in enumerate(texts) if text.lower() not in GAPS]
    odd = [row for row in given if not is_number(texts[row])]
    if given and not odd:
        numbers = np.full(len(texts), np.nan)
        numbers[given] = [float(texts[row]) for row in given]
        return Column(name, "number", numbers, as_objects(texts))
    mark = next((mark for mark in marks if any(mark in text for text in texts)), None)
    far = [row for row in odd if not is_number(texts[row].replace(",", ""))]
    if mark is None and 2 * len(far) < len(given):
        more = f", and {count_noun(len(odd) - 1, 'more such cell')}" if len(odd) > 1 else ""
        comma = "" if odd[0] in far else "write numbers with a point and no comma, "
        types = ", or end it with '|' if the column holds types" if marks else ""
        raise DataError(
            f"{place(odd[0])}: the column {name!r} holds "
            f"{count_noun(len(given) - len(odd), 'number')} and {quote(texts[odd[0]])} at "
            f"{quote(labels[odd[0]])}{more}; {comma}leave a cell empty where the number is not "
            f"known{types}"
        )
    return Column(name, "types", as_types(texts, mark))


def as_types(texts: Iterable[str], mark: str | None = None) -> NDArray[Any]:
    """Splits each text at the separator; None for texts without words."""
    out: list[tuple[str, ...] | None] = []
    for text in texts:
        words = (word.strip() for word in (text.split(mark) if mark else [text]))
        out.append(tuple(dict.fromkeys(word for word in words if word)) or None)
    return as_objects(out)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _vector_column(name: str, values: Sequence[Any], source: str, labels: Sequence[str]) -> Column:
    width = next(len(value) for value in values if value is not None)
    out = np.full((len(values), width), np.nan)
    for row, value in enumerate(values):
        if value is None:
            continue
        if len(value) != width:
            raise DataError(
                f"{source}: all vectors of {name!r} must have the same length (got {width} and, at "
                f"{quote(labels[row])}, {len(value)})"
            )
        try:
            out[row] = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{source}, row {row}: {name!r} must hold vectors of numbers (got "
                f"{str(value)[:40]} at {quote(labels[row])})"
            ) from error
    return Column(name, "vector", out)


def as_objects(values: Sequence[Any]) -> NDArray[Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def is_missing(cell: Any) -> bool:
    if cell is None:
        return True
    return (isinstance(cell, float) and cell != cell) or type(cell).__name__ in (
        "NAType",
        "NaTType",
    )
