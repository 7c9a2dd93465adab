"""Encodes features as a dense matrix, scaled by statistics of the training entities."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sheafprop.checks import count_noun, quote
from sheafprop.data.features import Column, FeatureTable, Kind, as_types, is_number
from sheafprop.errors import DataError

#: The interquartile range of a normal distribution of standard deviation one.
_IQR = 1.349
#: Minimum number of training entities of a type, and maximum number of types of a column.
_FEWEST, _MOST_TYPES = 2, 4096
#: Ratio to the largest number or to the median in training above which another unit is suspected.
_FAR = 100.0
_ENOUGH = 3
#: Bound of scaled numbers, so that sums stay finite.
_LARGEST = 1e300
#: Distance from the range of training, in multiples of it, above which another unit is suspected.
_OUTSIDE = 5.0


@dataclass(frozen=True)
class ColumnScale:
    """The scale of one feature, in plain values.

    Args:
        name (str): The name of the column.
        kind (str): As in :class:`~sheafprop.data.features.Column`.
        center (tuple of float): Medians in training.
        scale (tuple of float): Interquartile ranges in training, divided by that of a standard
            normal distribution; the standard deviation, or 1, if a range is zero.
        largest (float): The largest absolute value in training.
        middle (float): The median absolute value in training.
        types (tuple of str): The types, in the order of their columns.
        has_gaps (bool): Whether some training entities lack the feature. If so, an additional
            column indicates where it is known.
        low, high (float): The smallest and the largest number in training, for ``"number"``.
    """

    name: str
    kind: Kind
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    largest: float = 0.0
    middle: float = 0.0
    types: tuple[str, ...] = ()
    has_gaps: bool = False
    low: float = 0.0
    high: float = 0.0

    @property
    def width(self) -> int:
        """Number of columns of the matrix."""
        return (len(self.types) if self.kind == "types" else len(self.center)) + self.has_gaps

    @classmethod
    def fit(cls, column: Column) -> "ColumnScale":
        """Computes the scale of a feature of the training entities."""
        present = column.present()
        gaps = bool(present.any()) and not bool(present.all())
        if column.kind == "types":
            counts = Counter(word for value in column.values[present] for word in value)
            common = [w for w, n in counts.most_common(_MOST_TYPES) if n >= _FEWEST]
            return cls(column.name, "types", types=tuple(sorted(common)), has_gaps=gaps)
        values = _matrix(column.values)[present]
        if not len(values):
            zero = (0.0,) * values.shape[1]
            return cls(column.name, column.kind, zero, tuple(1.0 for _ in zero))
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
        spread, plain = (high - low) / _IQR, values.std(0)
        scale = np.where(spread > 0, spread, np.where(plain > 0, plain, 1.0))
        size = np.abs(values)
        found = cls(
            column.name,
            column.kind,
            tuple(middle.tolist()),
            tuple(scale.tolist()),
            float(size.max()),
            float(np.median(size)),
            has_gaps=gaps,
        )
        if column.kind == "number":
            found = replace(found, low=float(values.min()), high=float(values.max()))
        return found

    def encode(self, column: Column | None, rows: int) -> NDArray[np.float64]:
        """Returns the columns ``[n, width]``, zero where the feature is not known.

        A number :math:`x` becomes :math:`\\operatorname{asinh}((x - c) / s)`, which compresses
        outliers logarithmically.
        """
        out = np.zeros((rows, self.width))
        if column is None:
            return out
        present = column.present()
        if self.kind == "types":
            place = {word: number for number, word in enumerate(self.types)}
            for row in np.flatnonzero(present):
                known = [place[word] for word in column.values[row] if word in place]
                out[row, known] = 1.0
        else:
            values = _matrix(column.values)[present]
            with np.errstate(over="ignore"):
                scaled = (values - np.array(self.center)) / np.array(self.scale)
            scaled = np.clip(scaled, -_LARGEST, _LARGEST)
            out[present, : len(self.center)] = (
                np.arcsinh(scaled) if self.kind == "number" else scaled
            )
        if self.has_gaps:
            out[:, -1] = present
        return out

    def note(self, column: Column, labels: Sequence[str]) -> str | None:
        """Describes how a column differs from training, or returns None."""
        present = column.present()
        if not present.any():
            return None
        if self.kind == "types":
            known = set(self.types)
            words = [word for value in column.values[present] for word in value]
            new = {word for word in words if word not in known}
            if not new:
                return None
            return (
                f"{count_noun(len(new), 'type')} of {self.name!r} had fewer than {_FEWEST} "
                f"entities in training and {'is' if len(new) == 1 else 'are'} ignored "
                f"(first: {min(new)!r})"
            )
        values = _matrix(column.values)[present]
        size = np.abs(values)
        if not self.largest:
            return None
        median = float(np.median(size))
        outside = np.maximum(values - self.high, self.low - values)
        worst = int(size.max(1).argmax())
        far = size.max() > _FAR * self.largest
        if not far and self.low < self.high and outside.max() > _OUTSIDE * (self.high - self.low):
            far, worst = True, int(outside.argmax())
        if len(size) >= _ENOUGH and self.middle and not far:
            far = not self.middle / _FAR <= median <= self.middle * _FAR
        if not far:
            return None
        between = f"from {self.low:.3g} to {self.high:.3g}"
        there = between if self.low < self.high else f"at most {self.largest:.3g}"
        row = int(np.flatnonzero(present)[worst])
        return (
            f"the numbers of {self.name!r} differ from those in training (median absolute value "
            f"{median:.3g}, in training {self.middle:.3g} and {there}; furthest: "
            f"{values[worst][size[worst].argmax()]:.6g} at {quote(labels[row])}). Check the unit, "
            "the column, and whether the number marks a missing value"
        )


@dataclass(frozen=True)
class FeatureEncoder:
    """Encodes features as a matrix, scaled as for the training entities.

    Args:
        columns (tuple of ColumnScale): The scales of the features, in the order of their columns.
    """

    columns: tuple[ColumnScale, ...]

    @classmethod
    def fit(cls, table: FeatureTable) -> "FeatureEncoder":
        """Computes the scales from the features of the training entities."""
        return cls(tuple(map(ColumnScale.fit, table.columns)))

    @property
    def width(self) -> int:
        """Number of columns :math:`p` of the matrix."""
        return sum(column.width for column in self.columns)

    def encode(self, table: FeatureTable) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Encodes features. Columns are matched by name.

        Args:
            table (FeatureTable): The features of ``n`` entities.

        Returns:
            The matrix ``[n, p]``, and a mask of the entities with a known feature, bool ``[n]``.

        Raises:
            DataError: If the kind or width of a column differs from training, or the model knows
                none of the columns.
        """
        given = {column.name: column for column in table.columns}
        if not any(column.name in given for column in self.columns):
            raise DataError(
                f"{table.source}: at least one column must be a feature of the model: "
                f"{_named([c.name for c in self.columns])} (got {_named(list(given))})"
            )
        parts, known = [], np.zeros(len(table), dtype=bool)
        for scale in self.columns:
            column = given.get(scale.name)
            if column is not None:
                column = self._check(scale, column, table)
                known |= column.present()
            parts.append(scale.encode(column, len(table)))
        return np.concatenate(parts, axis=1), known

    def notes(self, table: FeatureTable) -> list[str]:
        """Describes how the features differ from those in training."""
        own, given = [c.name for c in self.columns], [c.name for c in table.columns]
        notes = []
        if extra := [name for name in given if name not in own]:
            notes.append(
                f"{count_noun(len(extra), 'column')} unknown to the model and ignored: "
                f"{_named(extra)}"
            )
        if missing := [name for name in own if name not in given]:
            notes.append(
                f"{count_noun(len(missing), 'column')} of the model missing here and treated as "
                f"unknown: {_named(missing)}"
            )
        shared = [name for name in given if name in own]
        if shared != [name for name in own if name in given]:
            notes.append("the columns are in another order than in training; matched by name")
        columns = {column.name: column for column in table.columns}
        for scale in self.columns:
            column = columns.get(scale.name)
            if column is not None and (
                found := scale.note(self._check(scale, column, table), table.labels)
            ):
                notes.append(found)
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Returns the encoder as plain values."""
        return {"columns": [asdict(column) for column in self.columns]}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "FeatureEncoder":
        """Creates an encoder from the values of :meth:`to_dict`."""
        columns: list[dict[str, Any]] = stored["columns"]
        scales = [
            ColumnScale(**{name: _frozen(value) for name, value in column.items()})
            for column in columns
        ]
        return cls(tuple(scales))

    @staticmethod
    def _check(scale: ColumnScale, column: Column, table: FeatureTable) -> Column:
        if column.kind != scale.kind and not column.present().any():
            # A column without any value has no kind.
            empty = [None] if scale.kind == "types" else [[np.nan] * len(scale.center)]
            values = np.array(empty * len(column.values), dtype=None if empty[0] else object)
            return Column(column.name, scale.kind, values)
        if scale.kind == "types" and column.texts is not None:
            # Types may look like numbers, for example codes.
            return Column(column.name, "types", as_types(column.texts.tolist()))
        width = column.values.shape[1] if column.values.ndim > 1 else 1
        if column.kind != scale.kind or (scale.kind == "vector" and width != len(scale.center)):
            was = scale.kind + (f" of {len(scale.center)}" if scale.kind == "vector" else "")
            got = column.kind + (f" of {width}" if column.kind == "vector" else "")
            place = table.source
            if scale.kind == "number" and column.kind == "types":
                row, text = _no_number(column)
                place = table.place(row)
                got += f", such as {quote(text)} at {quote(table.labels[row])}"
            raise DataError(
                f"{place}: the column {scale.name!r} must have the kind it had in training: {was} "
                f"(got {got})"
            )
        return column


def _no_number(column: Column) -> tuple[int, str]:
    """Returns the first text of a column that is not a number, and its row."""
    for row, texts in enumerate(column.values):
        for text in texts or ():
            if not is_number(text):
                return row, text
    return 0, ""


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _matrix(values: NDArray[Any]) -> NDArray[Any]:
    return values if values.ndim > 1 else values[:, None]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more
