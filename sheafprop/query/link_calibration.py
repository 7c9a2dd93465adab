import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize_scalar
from torch import Tensor

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.errors import FormatError

# Inverse temperatures that are tried; the best one is found between them.
_GRID = np.linspace(math.log(1e-3), math.log(1e3), 97)
# Numbers that are turned into shares at once.
_NUMBERS = 2**20


class ScoredRows(NamedTuple):
    r"""Scores of all entities as answers of held-out links of one relation, with the true answers.

    Args:
        relation: The relation; :math:`r + R` for the inverse of :math:`r`.
        scores: ``[n, N]``; :math:`-\infty` for entities to be excluded, such as known answers.
        answers: The true entities of every row.
        offset: A term added to the scaled scores, such as a weighted log proximity.
    """

    relation: int
    scores: Tensor
    answers: AnswerSets
    offset: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LinkCalibration:
    r"""The inverse temperature and the expected number of answers for each relation and direction.

    The parameters :math:`\beta_q` and :math:`a_q` of :class:`LinkProbabilities`.

    Args:
        temperature (Tensor): The inverse temperatures :math:`\beta_q`, double ``[2R]``.
        num_answers (Tensor): The expected numbers of answers :math:`a_q`, double ``[2R]``.
    """

    temperature: Tensor
    num_answers: Tensor

    @classmethod
    @torch.no_grad()
    def fit(
        cls, rows: Iterable[ScoredRows], num_relations: int, *, prior: float = 20.0
    ) -> "LinkCalibration":
        r"""Fits the calibration to held-out links by maximum likelihood.

        :math:`\beta_q` maximizes :math:`\sum_{u, v} \log \mathrm{softmax}_v(\beta_q f(u, q, v))`
        over the true answers, and :math:`a_q` is their mean number in a row. Relations with few
        links are regularized towards the values of all relations together, which count as ``prior``
        links or rows.

        Args:
            rows (iterable of ScoredRows): Held-out links; a relation may be split into several
                items.
            num_relations (int): The number of relations :math:`R`.
            prior (float, optional): The weight of the values of all relations, in links.

        Raises:
            ValueError: If a score is NaN, a true answer is excluded, a relation is out of range, or
                there are no answers.
        """
        if not 0 <= prior < math.inf:
            raise ValueError(f"'prior' must be a number from 0 on (got {prior})")
        loss = np.zeros((2 * num_relations, len(_GRID)))
        links, asked = np.zeros(2 * num_relations), np.zeros(2 * num_relations)
        for part in rows:
            if not 0 <= part.relation < 2 * num_relations:
                raise ValueError(
                    f"relation ids go from 0 to {2 * num_relations - 1} (got {part.relation})"
                )
            loss[part.relation] += _losses(part)
            links[part.relation] += part.answers.values.size
            asked[part.relation] += len(part.answers)
        if not links.sum():
            raise ValueError("a calibration needs held-out links (got none)")
        mean_loss, mean_links = loss.sum(0) / links.sum(), links.sum() / asked.sum()
        whole = _lowest(mean_loss)
        temperature = [
            math.exp(_lowest(own + prior * mean_loss) if count else whole)
            for own, count in zip(loss, links, strict=True)
        ]
        weight = asked + prior
        drawn = np.where(weight > 0, links + prior * mean_links, mean_links)
        # A relation without any answer and without a prior would expect none.
        expected = np.where(drawn > 0, drawn / np.where(weight > 0, weight, 1), mean_links)
        return cls(torch.tensor(temperature, dtype=torch.float64), torch.from_numpy(expected))

    def state(self) -> dict[str, Any]:
        """Returns the calibration as lists of numbers, for a JSON file."""
        return {"temperature": self.temperature.tolist(), "num_answers": self.num_answers.tolist()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "LinkCalibration":
        """Builds the calibration from the result of :meth:`state`.

        Raises:
            FormatError: If the state is invalid.
        """
        try:
            parts = [
                torch.tensor(state[name], dtype=torch.float64)
                for name in ("temperature", "num_answers")
            ]
            good = all(part.dim() == 1 and bool((part > 0).all()) for part in parts)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"not the numbers of a calibration of links ({error})") from error
        same = parts[0].shape == parts[1].shape
        if not (good and same and torch.cat(parts).isfinite().all()):
            raise FormatError(
                "not the numbers of a calibration of links (they must be positive, one of each for "
                "every relation)"
            )
        return cls(*parts)

    def __repr__(self) -> str:
        low, high = (f"{float(v):.3g}" for v in self.temperature.aminmax())
        count = len(self.temperature) // 2
        return f"{self.__class__.__name__}({count} relations, temperature {low} to {high})"


def _losses(part: ScoredRows) -> NDArray[np.float64]:
    """Minus the log likelihood of the answers at all temperatures of the grid."""
    if part.scores.dim() != 2 or len(part.scores) != len(part.answers):
        raise ValueError(
            f"'scores' must be [{len(part.answers)}, N], a row for each set of answers "
            f"(got {list(part.scores.shape)})"
        )
    total = np.zeros(len(_GRID))
    row, column = torch.from_numpy(part.answers.rows), torch.from_numpy(part.answers.values).long()
    step = max(1, _NUMBERS // max(1, part.scores.shape[1]))
    for start in range(0, len(part.scores), step):
        scores = part.scores[start : start + step]
        offset = 0 if part.offset is None else part.offset[start : start + step]
        own = (row >= start) & (row < start + step)
        place = (row[own].to(scores.device) - start, column[own].to(scores.device))
        for i, log_beta in enumerate(_GRID):
            shares = torch.log_softmax(scores * math.exp(log_beta) + offset, 1)
            total[i] -= float(shares[place].double().sum())
    if not np.isfinite(total).all():
        raise ValueError(
            f"held-out links of relation {part.relation} have a score that is not a number, or "
            "-inf for a true answer"
        )
    return total


def _lowest(loss: NDArray[np.float64]) -> float:
    """The log of the temperature where the loss, which is convex in the temperature, is least."""
    best = int(loss.argmin())
    low, high = _GRID[max(best - 1, 0)], _GRID[min(best + 1, len(_GRID) - 1)]
    spline = CubicSpline(_GRID, loss)
    found = minimize_scalar(spline, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return float(found.x) if found.fun < loss[best] else float(_GRID[best])
