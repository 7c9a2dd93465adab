from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.optimize
import scipy.special
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sheafprop.checks import check_choice
from sheafprop.errors import FormatError
from sheafprop.query.max_product import complement
from sheafprop.query.query_shape import STRUCTURES, QueryShape
from sheafprop.query.reliability import as_pairs

Method = Literal["isotonic", "platt"]

# Truths below are alike: nothing is learnt about them.
_LEAST = -700.0
# Odds beyond, as logs, are alike for a logistic curve.
_ODDS = 50.0


class TruthPairs(NamedTuple):
    """Validation queries of one structure with some entities.

    Args:
        log_truth: The logs of the truths of the entities as answers, ``[m]``.
        is_answer: Whether they are answers, ``[m]``.
        weight: How many entities each stands for, where they were sampled, ``[m]``.
    """

    log_truth: ArrayLike
    is_answer: ArrayLike
    weight: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class TruthCalibration:
    """The probability that an answer is right, from its truth, for each structure of queries.

    The truth of the best derivation is no probability: other derivations count, and links depend on
    each other. A monotone curve is fitted on validation queries, so that the order of the answers
    to a query stays.

    Args:
        method: ``"isotonic"`` for the best curve that does not fall (Zadrozny and Elkan, 2002), in
            pieces between its levels; ``"platt"`` for a logistic curve of the odds (Platt, 1999).
        curves: By the name of the structure, and ``""`` for all others: for isotonic curves logs of
            truth and probabilities, ``[2, m]``, otherwise slope and intercept, ``[2]``.
    """

    method: Method
    curves: Mapping[str, NDArray[np.float64]]

    @classmethod
    def fit(
        cls,
        pairs: Mapping[str, TruthPairs],
        *,
        method: Method | None = None,
        least: int = 20,
    ) -> TruthCalibration:
        """The curves of the largest likelihood.

        Args:
            pairs (mapping): For each structure, such as ``"2p"``, truths and whether they are
                right. All of them together make the curve of other structures.
            method (str, optional): The kind of curve. (default: isotonic where scipy has it)
            least (int, optional): With fewer right or wrong pairs than this, a structure takes the
                curve of all.

        Raises:
            ValueError: If there is no pair, sizes differ, or a truth is NaN or above 1.
        """
        if method is None:
            method = "isotonic" if hasattr(scipy.optimize, "isotonic_regression") else "platt"
        check_choice("method", method, ("isotonic", "platt"))
        arrays = {name: _check(name, own) for name, own in pairs.items()}
        if not sum(len(x) for x, _, _ in arrays.values()):
            raise ValueError("a calibration needs validation queries (got none)")
        fit = _isotonic if method == "isotonic" else _platt
        columns = [np.concatenate(column) for column in zip(*arrays.values(), strict=True)]
        curves = {"": fit(*columns)}
        for name, (x, true, weight) in arrays.items():
            if min(true.sum(), (1 - true).sum()) >= least:
                curves[name] = fit(x, true, weight)
        return cls(method, curves)

    def probability(self, log_truth: Tensor, shape: QueryShape) -> Tensor:
        """The probabilities of answers to queries of a shape, by their logs of truth.

        Args:
            log_truth (Tensor): The logs of truth, of any shape; what has no truth at all
                (:math:`-\\infty`) has probability 0.
            shape (QueryShape): The shape of the queries.
        """
        curve = self.curves.get(structure_name(shape), self.curves[""])
        x = log_truth.detach().cpu().double().numpy()
        if self.method == "isotonic":
            p = np.interp(np.maximum(x, _LEAST), *curve)
        else:
            p = scipy.special.expit(curve[0] * _log_odds(x) + curve[1])
        return torch.from_numpy(np.where(x == -np.inf, 0, p)).to(log_truth)

    def state(self) -> dict[str, Any]:
        """The calibration as lists of numbers, for a JSON file."""
        curves = {name: curve.tolist() for name, curve in self.curves.items()}
        return {"method": self.method, "curves": curves}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> TruthCalibration:
        """The calibration that :meth:`state` describes.

        Raises:
            FormatError: If it is something else.
        """
        try:
            method = state["method"]
            check_choice("method", method, ("isotonic", "platt"))
            curves = {
                str(name): np.array(curve, dtype=np.float64)
                for name, curve in state["curves"].items()
            }
            good = [_is_curve(curve, method) for curve in curves.values()]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"not the numbers of a calibration of truths ({error})") from error
        if "" not in curves or not all(good):
            what = "a curve falls" if "" in curves else "the curve of all structures is missing"
            raise FormatError(f"not the numbers of a calibration of truths ({what})")
        return cls(method, curves)

    def __repr__(self) -> str:
        names = ", ".join(name for name in self.curves if name)
        return f"{self.__class__.__name__}({self.method}, structures: {names or 'all together'})"


def _is_curve(curve: NDArray[np.float64], method: str) -> bool:
    """Whether numbers are finite and a curve that does not fall."""
    if method == "platt":
        good = curve.shape == (2,) and curve[0] >= 0
    else:
        good = curve.ndim == 2 and len(curve) == 2 and curve.shape[1] > 0
        good = good and (np.diff(curve) >= 0).all() and (curve[0] <= 0).all()
        good = good and 0 <= curve[1, 0] <= curve[1, -1] <= 1
    return bool(good and np.isfinite(curve).all())


def structure_name(shape: QueryShape) -> str:
    """The name of a structure, in whatever order its branches are; empty if it has none."""
    return _NAMES.get(_ordered(shape), "")


def _ordered(shape: QueryShape) -> QueryShape:
    branches = sorted((_ordered(branch) for branch in shape.branches), key=repr)
    return QueryShape(shape.operator, tuple(branches))


_NAMES = {_ordered(shape): name for name, shape in STRUCTURES.items()}


def _check(
    name: str, pairs: TruthPairs
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    x, true, weight = as_pairs(*pairs)
    if not (x <= 0).all():
        raise ValueError(f"truths must be between 0 and 1, their logs at most 0 (structure {name})")
    kept = weight > 0
    return np.maximum(x[kept], _LEAST), true[kept], weight[kept]


def _isotonic(
    x: NDArray[np.float64], true: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    knots, place = np.unique(x, return_inverse=True)
    total = np.bincount(place, weight)
    rate = np.bincount(place, weight * true) / total
    level = scipy.optimize.isotonic_regression(rate, weights=total).x.clip(0, 1)
    # Of each level its two ends are enough.
    change = np.flatnonzero(np.diff(level))
    ends = np.union1d(np.append(change, len(level) - 1), np.append(change + 1, 0))
    return np.stack([knots[ends], level[ends]])


def _platt(
    x: NDArray[np.float64], true: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    odds, right, wrong = _log_odds(x), float(weight @ true), float(weight @ (1 - true))
    # Platt's targets, one pair of each kind more, keep the curve finite.
    target = np.where(true > 0, (right + 1) / (right + 2), 1 / (wrong + 2))
    share = weight / weight.sum()

    def loss(curve: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        z = curve[0] * odds + curve[1]
        slope = share * (scipy.special.expit(z) - target)
        value = share @ (np.logaddexp(0, z) - target * z)
        return float(value), np.array([slope @ odds, slope.sum()])

    start = np.array([1.0, 0.0])
    options = {"ftol": 1e-14, "gtol": 1e-10, "maxiter": 1000}
    bounds = [(0, None), (None, None)]
    found = scipy.optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return found.x


def _log_odds(log_truth: NDArray[np.float64]) -> NDArray[np.float64]:
    x = torch.from_numpy(np.asarray(log_truth)).clamp(min=_LEAST)
    return (x - complement(x)).clamp(-_ODDS, _ODDS).numpy()
