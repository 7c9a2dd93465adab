"""From counts to metrics: a row of values for every query, and the names of what their sums give.

:class:`RankMetrics`, :class:`RankingResult` and the ranking of logical queries all go this way. To
add a metric, add its value per query to ``_rank_values`` and its name to :func:`name_metrics`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sheafprop.ranking.protocols import Protocol, Ties
from sheafprop.ranking.rank_counts import TIE_SHARES, RankCounts
from sheafprop.ranking.sampled50 import sampled50_expectation

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
