from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sheafprop.checks import check_integer


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
    ) -> ReliabilityTable:
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
