"""Accumulates ranking metrics as sums, so that they add up over batches and processes."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sheafprop.ranking.metrics import metrics_by_side, num_values, query_values
from sheafprop.ranking.protocols import HITS_AT, SIDES, Protocol, Side, Ties, resolve_rules
from sheafprop.ranking.rank_counts import RankCounts


class RankMetrics(Metric):
    r"""Hits@k, mean reciprocal rank, mean rank and AMRI of link prediction, under one protocol.

    With :math:`b` better, :math:`e` equal and :math:`n` other candidates, the optimistic rank is
    :math:`1 + b`, the pessimistic one :math:`1 + b + e`, the realistic one their mean. The adjusted
    mean rank index (Berrendorf *et al.*, 2020) compares the mean rank with that of a random order:

    .. math::
        \mathrm{AMRI} = 1 - \frac{\mathrm{MR} - 1}{\mathbb{E}[\mathrm{MR}] - 1}, \qquad
        \mathbb{E}[\mathrm{MR}] - 1 = \tfrac12 \, \mathrm{mean}(n)

    Queries of both sides are pooled, and each side is also reported separately. A model that gives
    every entity the same score has realistic rank 6 among 11 candidates, so :obj:`hits@10` is 1;
    :obj:`expected_hits@10` breaks ties at random and is 10/11. For baselines with large groups of
    ties, such as :class:`EdgeTypeHeuristic`, compare both.

    :meth:`compute` returns a dictionary with :obj:`hits@k`, :obj:`mrr`, :obj:`mean_rank`,
    :obj:`amri`, :obj:`expected_hits@k`, :obj:`expected_mrr` and :obj:`count` (ranked queries), the
    same with :obj:`head/` and :obj:`tail/` in front, and :obj:`dropped` (triples that could not be
    ranked). Protocols that draw negatives also count the queries with fewer candidates than
    negatives, as :obj:`few_candidates_50`: candidates are then drawn repeatedly, and a rank may
    exceed their number. The names identify the protocol: :obj:`hits@10_50` for :obj:`"sampled50"`,
    :obj:`hits@10_merged` for :obj:`"merged"`, :obj:`hits@10_strict` for :obj:`"strict"`, and
    :obj:`hits@10_optimistic` for a tie rule that is not that of the protocol.

    Args:
        protocol (str or Protocol, optional): :obj:`"full"`, :obj:`"sampled50"`,
            :obj:`"merged"` or :obj:`"strict"`. (default: :obj:`"full"`)
        ties (str, optional): :obj:`"optimistic"`, :obj:`"realistic"` or :obj:`"pessimistic"`; that
            of the protocol if :obj:`None`. (default: :obj:`None`)
        k (tuple, optional): The values of :math:`k` of Hits@k. (default: :obj:`(1, 3, 10)`)
        **kwargs (optional): Additional arguments of :class:`torchmetrics.Metric`.

    Raises:
        ValueError: If an argument is invalid, if counts are inconsistent, or if metrics are
            computed before any triple was ranked.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = None

    sums: Tensor
    dropped: Tensor

    def __init__(
        self,
        protocol: str | Protocol = "full",
        *,
        ties: Ties | None = None,
        k: tuple[int, ...] = HITS_AT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.k = tuple(k)
        self.protocol, self.ties = resolve_rules(protocol, ties, self.k)
        sums = torch.zeros(len(SIDES), num_values(self.k), dtype=torch.float64)
        self.add_state("sums", sums, dist_reduce_fx="sum")
        self.add_state("dropped", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(
        self, better: Tensor, ties: Tensor, candidates: Tensor, side: Side, dropped: int = 0
    ) -> None:
        r"""Adds the counts of a batch of queries.

        Args:
            better (torch.Tensor): The number of candidates with a strictly better score.
            ties (torch.Tensor): The number of other candidates with an equal score.
            candidates (torch.Tensor): The number of candidates without the true entity.
            side (str): The side that was ranked, :obj:`"head"` or :obj:`"tail"`.
            dropped (int, optional): The number of triples that could not be ranked.
                (default: :obj:`0`)
        """
        if side not in SIDES:
            raise ValueError(f"Expected side among {', '.join(SIDES)} (got {side!r})")
        if dropped < 0:
            raise ValueError(f"Expected dropped >= 0 (got {dropped})")
        counts = RankCounts(better, ties, candidates)
        values = query_values(counts, self.protocol, self.ties, self.k).sum(0)
        self.sums[SIDES.index(side)] += values.to(self.sums.device)
        self.dropped += dropped

    def compute(self) -> dict[str, Any]:
        r"""Returns the metrics over all counts added so far."""
        metrics = metrics_by_side(self.sums, SIDES, self.protocol, self.ties, self.k)
        return {**metrics, "dropped": int(self.dropped)}

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}(protocol={self.protocol.name}, ties={self.ties}, "
            f"k={self.k})"
        )
