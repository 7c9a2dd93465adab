"""From counts to metrics: a row of values for every query, and the names of what their sums give.

Also ranks against 49 sampled negatives: the expectation in closed form, and one seeded draw.

:class:`RankMetrics`, :class:`RankingResult` and the ranking of logical queries all go this way. To
add a metric, add its value per query to ``_rank_values`` and its name to :func:`name_metrics`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.ranking.protocols import Protocol, Ties
from sheafprop.ranking.rank_counts import TIE_SHARES, RankCounts

NUM_NEGATIVES = 49
_CHUNK = 128  # rows at once: their 1275 outcomes stay in the cache
_LOG_ZERO = -1e4  # exp(-1e4) is exactly 0, and 0 * -1e4 is 0 where 0 * -inf would be NaN


@functools.cache
def _outcomes(with_ties: bool) -> tuple[Tensor, Tensor]:
    """All draws (better, equal, worse) as columns, and the logarithm of their multiplicities."""
    draws = torch.arange(NUM_NEGATIVES + 1, dtype=torch.float64)
    better, ties = torch.meshgrid(draws, draws if with_ties else draws[:1], indexing="ij")
    outcomes = torch.stack([better, ties, NUM_NEGATIVES - better - ties]).flatten(1)
    outcomes = outcomes[:, outcomes[2] >= 0]
    multiplicity = torch.lgamma(draws[-1] + 1) - torch.lgamma(outcomes + 1).sum(0)
    return outcomes, multiplicity


def _probabilities(counts: RankCounts) -> Tensor:
    """The chances that one negative is better, equal or worse; without any candidate: worse."""
    size = counts.candidates.clamp(min=1)
    shares = torch.stack([counts.better, counts.ties, size - counts.better - counts.ties], dim=1)
    return shares.double() / size.unsqueeze(1)


def sampled50_expectation(counts: RankCounts, values: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    r"""Returns the exact expectation of metrics against 49 sampled negatives, for every query.

    The negatives are drawn uniformly and with replacement from the :math:`n` filtered candidates,
    of which :math:`b` score strictly better than the true entity and :math:`e` tie with it. The
    numbers :math:`(B, T)` of better and equal ones among them are multinomial, so that

    .. math::
        \mathbb{E}[f] = \sum_{B + T \le 49} \frac{49!}{B! \, T! \, (49 - B - T)!}
        \left( \frac{b}{n} \right)^{B} \left( \frac{e}{n} \right)^{T}
        \left( 1 - \frac{b + e}{n} \right)^{49 - B - T} f(B, T)

    Without candidates (:math:`n = 0`), the result is :math:`f(0, 0)`.

    Args:
        counts (RankCounts): The counts :math:`b, e, n` of every query.
        values (callable): Maps :math:`(B, T)`, two float64 vectors, to the values of all metrics,
            one row per outcome.

    Shapes:
        - **input:** counts :math:`(m)`, values :math:`(g), (g) \to (g, c)`
        - **output:** :math:`(m, c)` in float64
    """
    triplets = torch.stack([counts.better, counts.ties, counts.candidates], dim=1)
    triplets, position = torch.unique(triplets, dim=0, return_inverse=True)
    distinct = RankCounts(*triplets.unbind(1))
    tied = distinct.ties > 0
    parts: list[Tensor] = []
    for with_ties in (False, True):  # most queries have no ties: 50 outcomes instead of 1275
        rows = (tied == with_ties).nonzero().view(-1)
        outcomes, multiplicity = (part.to(rows.device) for part in _outcomes(with_ties))
        table = values(outcomes[0], outcomes[1])
        logs = _probabilities(distinct[rows]).log().clamp(min=_LOG_ZERO)
        parts += [
            torch.addmm(multiplicity, log, outcomes).exp_() @ table for log in logs.split(_CHUNK)
        ]
    order = torch.argsort(tied.long(), stable=True)
    expectation = torch.cat(parts)
    return torch.empty_like(expectation).index_copy_(0, order, expectation)[position]


def sampled50_draw(better: Tensor, ties: Tensor, candidates: Tensor, seed: int) -> RankCounts:
    r"""Draws 49 negatives with replacement for every query and returns its counts among them.

    Published results "against 50" use one such draw; :func:`sampled50_expectation` is its
    expectation.

    Args:
        better (torch.Tensor): The number of candidates with a strictly better score.
        ties (torch.Tensor): The number of other candidates with an equal score.
        candidates (torch.Tensor): The number of candidates without the true entity.
        seed (int): The seed of the draw, for the queries in this order.

    Shapes:
        - **input:** three vectors :math:`(m)`
        - **output:** three vectors :math:`(m)`; queries without candidates draw nothing
    """
    counts = RankCounts(better, ties, candidates)
    draw = np.random.default_rng(seed).multinomial(
        NUM_NEGATIVES, _probabilities(counts).cpu().numpy()
    )
    drawn = torch.from_numpy(draw).to(better)
    size = torch.where(candidates > 0, NUM_NEGATIVES, 0)
    return RankCounts(drawn[:, 0], drawn[:, 1], size)


# Columns before the Hits: one, few candidates, candidates, rank - 1, two reciprocal ranks.
_NUM_FIXED = 6


def num_values(k: Sequence[int]) -> int:
    """The number of columns of :func:`query_values`."""
    return _NUM_FIXED + 2 * len(k)


def query_values(counts: RankCounts, protocol: Protocol, ties: Ties, k: Sequence[int]) -> Tensor:
    """One row per query, one column per quantity; their sums over queries give every metric."""
    values = functools.partial(_rank_values, rule=ties, k=k)
    candidates = counts.candidates
    few = torch.zeros_like(candidates)
    if protocol.num_negatives is None:
        ranked = values(counts.better, counts.ties)
    else:
        few = few_candidates(counts, protocol)
        candidates = torch.where(candidates > 0, protocol.num_negatives, 0)
        ranked = sampled50_expectation(counts, values)
    fixed = torch.stack([torch.ones_like(candidates), few, candidates], dim=1)
    return torch.cat([fixed.double(), ranked], dim=1)


def few_candidates(counts: RankCounts, protocol: Protocol) -> Tensor:
    """One for each query with fewer candidates than the protocol draws negatives, else zero."""
    return (counts.candidates < (protocol.num_negatives or 0)).long()


def _rank_values(better: Tensor, ties: Tensor, *, rule: Ties, k: Sequence[int]) -> Tensor:
    r"""Rank - 1, its reciprocal rank, that expected under random ties, and likewise Hits@k.

    Where equal scores stand in random order, the rank is uniform on
    :math:`b + 1, \dots, b + e + 1` for :math:`b` better and :math:`e` equal candidates.
    """
    better, ties = better.double(), ties.double()
    above = better + TIE_SHARES[rule] * ties
    hits = [(above <= value - 1).double() for value in k]
    expected = [((value - better) / (ties + 1)).clamp(0, 1) for value in k]
    # A difference of harmonic numbers; a rank without ties keeps all its digits.
    mean = (torch.digamma(better + ties + 2) - torch.digamma(better + 1)) / (ties + 1)
    reciprocal = torch.where(ties > 0, mean, 1 / (better + 1))
    return torch.stack([above, 1 / (1 + above), reciprocal, *hits, *expected], dim=1)


def name_metrics(sums: Sequence[float], k: Sequence[int]) -> dict[str, float]:
    """The metrics of one row of sums of :func:`query_values`, by their names."""
    count, _, candidates, above, reciprocal, expected, *hits = sums
    return {
        **{f"hits@{value}": hit / count for value, hit in zip(k, hits, strict=False)},
        "mrr": reciprocal / count,
        "mean_rank": 1 + above / count,
        # A random order expects candidates / 2 of them above the true entity. Without any
        # candidate there is nothing to be better at: 0, as for a random order.
        "amri": 1 - 2 * above / candidates if candidates > 0 else 0.0,
        **{
            f"expected_hits@{value}": hit / count
            for value, hit in zip(k, hits[len(k) :], strict=True)
        },
        "expected_mrr": expected / count,
    }


def metrics_by_side(
    sums: Tensor, sides: Sequence[str], protocol: Protocol, ties: Ties, k: Sequence[int]
) -> dict[str, Any]:
    """The metrics of sums of :func:`query_values`, a row per side: pooled, then side by side."""
    sums = sums.cpu()
    if sums[:, 0].sum() == 0:
        raise ValueError("Expected at least one ranked triple (got none): there is no metric of it")
    named = {"": sums.sum(0)}
    named |= {f"{side}/": row for side, row in zip(sides, sums, strict=True) if row[0] > 0}
    result: dict[str, Any] = {}
    for prefix, row in named.items():
        metrics = name_metrics(row.tolist(), k)
        result |= {prefix + protocol.key(name, ties): value for name, value in metrics.items()}
        result[f"{prefix}count"] = round(float(row[0]))
        if protocol.num_negatives is not None:
            result[prefix + protocol.key("few_candidates")] = round(float(row[1]))
    return result
