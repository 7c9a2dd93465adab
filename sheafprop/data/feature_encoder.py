"""Features as a matrix of numbers without gaps, in the scales of the training entities."""

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
#: A type must have so many training entities, and a column has so many types at most.
_FEWEST, _MOST_TYPES = 2, 4096
#: Numbers that lie so many times further out than all in training, or whose median does over that
#: of training, may be in another unit.
_FAR = 100.0
_ENOUGH = 3
#: The largest size of a scaled number, so that sums stay finite.
_LARGEST = 1e300
#: So may a number that lies so many times the range of training outside of it.
_OUTSIDE = 5.0


@dataclass(frozen=True)
class ColumnScale:
    """How one feature is scaled, in plain values.

    Args:
        name (str): The name of the column.
        kind (str): As in :class:`~sheafprop.data.features.Column`.
        center (tuple of float): Medians in training.
        scale (tuple of float): Their interquartile ranges as those of a normal distribution of
            standard deviation one; where they are zero, the standard deviations or 1.
        largest (float): The largest absolute value in training.
        middle (float): The median absolute value in training.
        types (tuple of str): The types, in the order of their columns.
        has_gaps (bool): Whether some training entities lack the feature: it has a column more
            then, which is one where the feature is known.
        low, high (float): The smallest and the largest number in training; of a number alone.
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
        """The scale of a feature of the training entities."""
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
        """The columns ``[n, width]`` of some entities; zeros where the feature is not known.

        A number :math:`x` becomes :math:`\\operatorname{asinh}((x - c) / s)`, so that outliers,
        which are linear in no map, grow by their logarithm.
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
        """What looks unlike training in a column of some entities, if anything does."""
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
                f"entities in training and {'counts' if len(new) == 1 else 'count'} for nothing "
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
            f"the numbers of {self.name!r} are unlike those of training (median size "
            f"{median:.3g}, there {self.middle:.3g} and {there}; furthest: "
            f"{values[worst][size[worst].argmax()]:.6g} at {quote(labels[row])}): another unit, "
            "another column, or a number that stands for an unknown one?"
        )


@dataclass(frozen=True)
class FeatureEncoder:
    """Turns features into a matrix, in the scales of the training entities.

    Args:
        columns (tuple of ColumnScale): The features in the order of their columns.
    """

    columns: tuple[ColumnScale, ...]

    @classmethod
    def fit(cls, table: FeatureTable) -> "FeatureEncoder":
        """The encoder of the features of training entities."""
        return cls(tuple(map(ColumnScale.fit, table.columns)))

    @property
    def width(self) -> int:
        """Number of columns :math:`p` of the matrix."""
        return sum(column.width for column in self.columns)

    def encode(self, table: FeatureTable) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Encodes features; columns are found by their names.

        Args:
            table (FeatureTable): The features of ``n`` entities.

        Returns:
            The matrix ``[n, p]``, and which entities have any known feature, bool ``[n]``.

        Raises:
            DataError: If a column is of another kind or width than in training, or none is known.
        """
        given = {column.name: column for column in table.columns}
        if not any(column.name in given for column in self.columns):
            raise DataError(
                f"{table.source}: no column is one that the model knows. It knows "
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
        """What a user should know of features that the model was not trained with."""
        own, given = [c.name for c in self.columns], [c.name for c in table.columns]
        notes = []
        if extra := [name for name in given if name not in own]:
            notes.append(
                f"{count_noun(len(extra), 'column')} unknown to the model and not used: "
                f"{_named(extra)}"
            )
        if missing := [name for name in own if name not in given]:
            notes.append(
                f"{count_noun(len(missing), 'column')} of the model missing here, so not known of "
                f"any entity: {_named(missing)}"
            )
        shared = [name for name in given if name in own]
        if shared != [name for name in own if name in given]:
            notes.append("the columns come in another order than in training: matched by name")
        columns = {column.name: column for column in table.columns}
        for scale in self.columns:
            column = columns.get(scale.name)
            if column is not None and (
                found := scale.note(self._check(scale, column, table), table.labels)
            ):
                notes.append(found)
        return notes

    def to_dict(self) -> dict[str, Any]:
        """The encoder as plain values."""
        return {"columns": [asdict(column) for column in self.columns]}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "FeatureEncoder":
        """The encoder of :meth:`to_dict`."""
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
            # Types such as codes, which happen to be numbers here.
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
                f"{place}: the column {scale.name!r} must hold what it held in training: {was} "
                f"(got {got})"
            )
        return column


def _no_number(column: Column) -> tuple[int, str]:
    """The first text of a column that is not a number, and its row."""
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
