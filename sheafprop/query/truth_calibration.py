from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.errors import FormatError
from sheafprop.query.query import STRUCTURES, QueryShape


@dataclass(frozen=True, eq=False)
class ReliabilityTable:
    """Observed frequencies of predictions by predicted probability.

    Args:
        lower, upper: The bounds of the bins that hold a prediction, ``[B]``.
        count: Number of predictions in each bin.
        predicted: Their mean probability.
        observed: The observed frequency.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    count: NDArray[np.float64]
    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]

    @classmethod
    def of(
        cls, probability: ArrayLike, is_true: ArrayLike, *, num_bins: int = 10
    ) -> "ReliabilityTable":
        """Computes the table of predictions, in bins of equal width.

        Args:
            probability: The predicted probabilities, ``[m]``.
            is_true: Whether each is true, ``[m]``.
            num_bins: The number of bins between 0 and 1.

        Raises:
            ValueError: If sizes differ, or a probability is not between 0 and 1.
        """
        check_integer("num_bins", num_bins, 1)
        p, true = as_pairs(probability, is_true)
        if not ((p >= 0) & (p <= 1)).all():
            raise ValueError("probabilities must be between 0 and 1")
        edges = np.linspace(0, 1, num_bins + 1)
        place = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, num_bins - 1)
        count, predicted, observed = (
            np.bincount(place, values, minlength=num_bins).astype(np.float64)
            for values in (np.ones(len(p)), p, true)
        )
        filled = count > 0
        sums = count[filled]
        return cls(
            edges[:-1][filled],
            edges[1:][filled],
            sums,
            predicted[filled] / sums,
            observed[filled] / sums,
        )

    @property
    def expected_calibration_error(self) -> float:
        """The mean difference of predicted and observed frequencies over all predictions; 0 without
        predictions."""
        gaps = np.abs(self.predicted - self.observed)
        return float((self.count * gaps).sum() / max(self.count.sum(), np.finfo(float).tiny))

    def records(self) -> list[dict[str, Any]]:
        """Returns a record for each bin."""
        names = ("lower", "upper", "count", "predicted", "observed")
        columns = (getattr(self, name).tolist() for name in names)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({len(self.count)} bins, {self.count.sum():g} predictions, "
            f"expected calibration error {self.expected_calibration_error:.3g})"
        )


def as_pairs(
    values: ArrayLike, is_true: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and whether they came true (0 or 1), as vectors of one length.

    Raises:
        ValueError: If the lengths differ.
    """
    x = np.asarray(values, dtype=np.float64)
    true = np.asarray(is_true, dtype=np.float64)
    if x.ndim != 1 or x.shape != true.shape:
        raise ValueError(f"expected vectors of one length (got {x.shape} and {true.shape})")
    return x, true


# Truths below are alike: nothing is learnt about them.
_LEAST = -700.0


class TruthPairs(NamedTuple):
    """Validation queries of one structure with candidate entities.

    Args:
        log_truth: The logs of the truths of the entities as answers, ``[m]``.
        is_answer: Whether they are answers, ``[m]``.
    """

    log_truth: ArrayLike
    is_answer: ArrayLike


@dataclass(frozen=True, eq=False)
class TruthCalibration:
    """The probability that an answer is correct, from its truth, for each structure of queries.

    The truth of the best derivation is not a probability, because there are other derivations and
    links are dependent. A monotone curve is fitted on validation queries (isotonic
    regression: Zadrozny and Elkan, 2002), so that the order of the answers to a query stays.

    Args:
        curves: By the name of the structure, and ``""`` for all others: logs of truth and
            probabilities, ``[2, m]``, with straight pieces between them.
    """

    curves: Mapping[str, NDArray[np.float64]]

    @classmethod
    def fit(cls, pairs: Mapping[str, TruthPairs], *, least: int = 20) -> "TruthCalibration":
        """Fits the curves by maximum likelihood.

        Args:
            pairs (mapping): For each structure, such as ``"2p"``, truths and whether they are
                right. All of them together make the curve of other structures.
            least (int, optional): With fewer right or wrong pairs than this, a structure takes the
                curve of all.

        Raises:
            ValueError: If there is no pair, sizes differ, or a truth is NaN or above 1.
        """
        arrays = {name: _check(name, own) for name, own in pairs.items()}
        if not sum(len(x) for x, _ in arrays.values()):
            raise ValueError("a calibration needs validation queries (got none)")
        columns = [np.concatenate(column) for column in zip(*arrays.values(), strict=True)]
        curves = {"": _fit_curve(*columns)}
        for name, (x, true) in arrays.items():
            if min(true.sum(), (1 - true).sum()) >= least:
                curves[name] = _fit_curve(x, true)
        return cls(curves)

    def probability(self, log_truth: Tensor, shape: QueryShape) -> Tensor:
        """Returns the probabilities of answers to queries of a shape, from their logs of truth.

        Args:
            log_truth (Tensor): The logs of truth, of any shape; what has no truth at all
                (:math:`-\\infty`) has probability 0, what follows from facts alone (0) has
                probability 1.
            shape (QueryShape): The shape of the queries.
        """
        curve = self.curves.get(structure_name(shape), self.curves[""])
        x = log_truth.detach().cpu().double().numpy()
        p = np.interp(x, *curve)
        p = np.where(x == -np.inf, 0, np.where(x == 0, 1, p))
        return torch.from_numpy(p).to(log_truth)

    def state(self) -> dict[str, Any]:
        """Returns the calibration as lists of numbers, for a JSON file."""
        return {"curves": {name: curve.tolist() for name, curve in self.curves.items()}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "TruthCalibration":
        """Builds the calibration from the result of :meth:`state`.

        Raises:
            FormatError: If it is something else.
        """
        try:
            curves = {
                str(name): np.array(curve, dtype=np.float64)
                for name, curve in state["curves"].items()
            }
            good = [_is_curve(curve) for curve in curves.values()]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"not the numbers of a calibration of truths ({error})") from error
        if "" not in curves or not all(good):
            what = "a curve falls" if "" in curves else "the curve of all structures is missing"
            raise FormatError(f"not the numbers of a calibration of truths ({what})")
        return cls(curves)

    def __repr__(self) -> str:
        names = ", ".join(name for name in self.curves if name)
        return f"{self.__class__.__name__}(structures: {names or 'all together'})"


def _is_curve(curve: NDArray[np.float64]) -> bool:
    """Whether numbers are finite and a curve that does not fall."""
    good = curve.ndim == 2 and len(curve) == 2 and curve.shape[1] > 0
    good = good and (np.diff(curve) >= 0).all() and (curve[0] <= 0).all()
    good = good and 0 <= curve[1, 0] <= curve[1, -1] <= 1
    return bool(good and np.isfinite(curve).all())


def structure_name(shape: QueryShape) -> str:
    """The name of a structure, in whatever order its branches are; empty if it has none."""
    return _NAMES.get(_sort_branches(shape), "")


def _sort_branches(shape: QueryShape) -> QueryShape:
    branches = sorted((_sort_branches(branch) for branch in shape.branches), key=repr)
    return QueryShape(shape.operator, tuple(branches))


_NAMES = {_sort_branches(shape): name for name, shape in STRUCTURES.items()}


def _check(name: str, pairs: TruthPairs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, true = as_pairs(*pairs)
    if not (x <= 0).all():
        raise ValueError(f"truths must be between 0 and 1, their logs at most 0 (structure {name})")
    return np.maximum(x, _LEAST), true


def _fit_curve(x: NDArray[np.float64], true: NDArray[np.float64]) -> NDArray[np.float64]:
    knots, place = np.unique(x, return_inverse=True)
    total = np.bincount(place)
    rate = np.bincount(place, true) / total
    level = isotonic_regression(rate, weights=total).x
    # Of each level its two ends are enough, of the last one its start.
    change = np.flatnonzero(np.diff(level))
    ends = np.union1d(change, np.append(change + 1, 0))
    return np.stack([knots[ends], level[ends]])
