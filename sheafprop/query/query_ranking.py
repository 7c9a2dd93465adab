from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sheafprop.ranking import RankCounts
from sheafprop.ranking._query_values import expected_hits, expected_reciprocal_rank

Averaging = Literal["macro", "micro"]


@dataclass(frozen=True, eq=False)
class QueryRanking:
    """Where every hard answer of every query stands among the entities that are no answers.

    Args:
        counts (RankCounts): Better, equal and all candidates of every pair of query and answer.
        query (Tensor): The query of every pair, ascending, int64.
        num_queries (int): Number of queries, those without a hard answer included.
        num_candidates (int): Number of entities that were ranked, answers included.
    """

    counts: RankCounts
    query: Tensor
    num_queries: int
    num_candidates: int

    def metrics(
        self, averaging: Averaging = "macro", k: tuple[int, ...] = (1, 3, 10)
    ) -> dict[str, float]:
        """Hits@k and mean reciprocal rank by realistic ranks, and both with ties in random order.

        A realistic rank counts half of the equal scores as better, so that a large tie is a miss
        as a whole; ``"expected_hits@k"`` and ``"expected_mrr"`` are expectations over the order of
        equal scores, as published figures of an unstable sort are on average.

        Args:
            averaging (str, optional): ``"macro"`` takes the mean over the answers of a query, then
                over queries; ``"micro"`` pools all pairs of query and answer.
            k (tuple, optional): The values of k.

        Returns:
            The metrics, with ``"queries"`` and ``"answers"``, the numbers that were ranked.

        Raises:
            ValueError: If there is no hard answer at all.
        """
        if averaging not in ("macro", "micro"):
            raise ValueError(f"'averaging' must be 'macro' or 'micro' (got {averaging!r})")
        if len(self.counts) == 0:
            raise ValueError("there is no hard answer to rank, hence no metric")
        rank = self.counts.ranks("realistic")
        better, ties = self.counts.better, self.counts.ties
        hits = [(rank <= value).double() for value in k]
        expected = [expected_hits(better, ties, value) for value in k]
        reciprocal = expected_reciprocal_rank(better, ties)
        values = torch.stack([*hits, 1 / rank, *expected, reciprocal])
        sizes = torch.bincount(self.query, minlength=self.num_queries)
        ranked = int((sizes > 0).sum())
        if averaging == "macro":
            mean = (values / sizes[self.query]).sum(1) / ranked
        else:
            mean = values.mean(1)
        names = [*(f"hits@{value}" for value in k), "mrr"]
        names += [f"expected_{name}" for name in names]
        return {
            **dict(zip(names, mean.tolist(), strict=True)),
            "queries": ranked,
            "answers": len(self.counts),
        }

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({self.num_queries} queries, {len(self.counts)} answers, "
            f"{self.num_candidates} candidates)"
        )
