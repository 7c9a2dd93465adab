"""Ranks triples together: each rank has a part of the candidates, or of the triples."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sheafprop.distributed.ranks import Ranks
from sheafprop.ranking import RankingResult, TripleFilter, evaluate
from sheafprop.ranking.rank_counts import CandidateShard, RankCounts
from sheafprop.ranking.rank_triples import ScoreFunction


def shard_size(num_rows: int, num_ranks: int, multiple: int = 1) -> int:
    """How many rows each rank has, but the last ones; one at least."""
    return max(1, -(-num_rows // (num_ranks * multiple))) * multiple


def shard_bounds(num_rows: int, ranks: Ranks, multiple: int = 1) -> tuple[int, int]:
    """The rows of this rank, from the first to the one after the last.

    All ranks have as many, but the last ones, which may have fewer or none, as
    :class:`torch.distributed.tensor.Shard` cuts a tensor.

    Args:
        num_rows (int): The rows of all ranks.
        ranks (Ranks): The ranks.
        multiple (int): What the first row of each rank is a multiple of.
    """
    step = shard_size(num_rows, ranks.size, multiple)
    return min(ranks.rank * step, num_rows), min((ranks.rank + 1) * step, num_rows)


def rank_shards(
    ranks: Ranks,
    score_tails: ScoreFunction | None,
    score_heads: ScoreFunction | None,
    triples: Tensor,
    triple_filter: TripleFilter,
    *,
    bounds: tuple[int, int],
    **options: Any,
) -> RankingResult:
    """Ranks triples among all entities, of which each rank scores its own.

    The score of the true entity comes from the rank that owns it; each rank counts the better and
    the equal ones among its entities, without the known answers there, and counts are added up.
    They are those of one process where scores are, bit for bit: a matrix product may round the
    score of an entity otherwise if it is computed beside others.

    Args:
        ranks (Ranks): The ranks, all of which call this.
        score_tails (callable, optional): Scores ``[B, n]`` of the entities of this rank as tails,
            see :func:`~sheafprop.ranking.evaluate`.
        score_heads (callable, optional): The same as heads.
        triples (Tensor): The triples ``[m, 3]``, the same on all ranks.
        triple_filter (TripleFilter): The known triples, the same on all ranks.
        bounds (tuple): The first entity of this rank and the one after its last, see
            :func:`shard_bounds`.
        **options: Those of :func:`~sheafprop.ranking.evaluate`.

    Returns:
        RankingResult: The result, on every rank.

    Raises:
        DivergenceError: If a score is NaN.
        RankError: If a rank is lost.
    """

    def reduce(tensor: Tensor, operation: str) -> Tensor:
        return ranks.all_reduce(tensor.to(ranks.device), operation).to(tensor.device)

    shard = CandidateShard(*bounds, lambda x: reduce(x, "max"), lambda x: reduce(x, "sum"))
    return evaluate(score_tails, score_heads, triples, triple_filter, shard=shard, **options)


def rank_shares(
    ranks: Ranks,
    score_tails: ScoreFunction | None,
    score_heads: ScoreFunction | None,
    triples: Tensor,
    triple_filter: TripleFilter,
    **options: Any,
) -> RankingResult:
    """Ranks triples, of which each rank has its share, by scores of all entities.

    For scores that see the whole graph, such as those of episodes and proximity.

    Args:
        ranks (Ranks): The ranks, all of which call this.
        score_tails (callable, optional): Scores ``[B, N]`` of all tails.
        score_heads (callable, optional): Scores ``[B, N]`` of all heads.
        triples (Tensor): The triples ``[m, 3]``, the same on all ranks.
        triple_filter (TripleFilter): The known triples, the same on all ranks.
        **options: Those of :func:`~sheafprop.ranking.evaluate`.

    Returns:
        RankingResult: The result, on every rank, of all triples.

    Raises:
        DivergenceError: If a score is NaN.
        RankError: If a rank is lost.
    """
    first, end = shard_bounds(len(triples), ranks)
    own = evaluate(score_tails, score_heads, triples[first:end], triple_filter, **options)
    counts = {}
    for side, part in own.counts.items():
        whole = torch.zeros(3, len(triples), dtype=torch.long, device=ranks.device)
        whole[:, first:end] = torch.stack(list(vars(part).values())).to(ranks.device)
        counts[side] = RankCounts(*ranks.all_reduce(whole).cpu())
    return replace(own, triples=triples.cpu(), counts=counts)
