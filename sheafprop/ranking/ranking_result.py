"""Keeps where every evaluated triple stood, so that any protocol can be computed from one pass.

Queries are split by what the observed graph knows of their true answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from sheafprop.ranking.metrics import few_candidates, metrics_by_side, query_values, sampled50_draw
from sheafprop.ranking.protocols import (
    HITS_AT,
    SIDES,
    TIE_RULES,
    Protocol,
    Side,
    Sides,
    Ties,
    get_protocol,
    resolve_rules,
)
from sheafprop.ranking.rank_counts import RankCounts


@dataclass(frozen=True)
class RankingResult:
    r"""The outcome of :func:`evaluate`: the counts of every triple and side, on the CPU.

    Args:
        triples (torch.Tensor): The ranked triples :math:`(m, 3)`.
        counts (dict): The counts of every triple, by side.
        num_candidates (int): The number of candidate entities before filtering.
        filter (str): Description of the filtered candidates.
        num_dropped (int): The number of triples that could not be ranked.
        test_set (str, optional): The name of the ranked triples; that of the protocol if
            :obj:`None`. (default: :obj:`None`)
        notes (tuple of str, optional): Notes for the protocol box. (default: :obj:`()`)
    """

    triples: Tensor
    counts: dict[Side, RankCounts]
    num_candidates: int
    filter: str
    num_dropped: int = 0
    test_set: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def sides(self) -> Sides:
        r"""The sides that were ranked."""
        return "both" if len(self.counts) == 2 else next(iter(self.counts))

    def ranks(self, side: Side, ties: Ties = "realistic") -> Tensor:
        r"""Returns the rank of every triple on one side among all its candidates.

        Args:
            side (str): :obj:`"head"` or :obj:`"tail"`.
            ties (str, optional): How equal scores count. (default: :obj:`"realistic"`)

        Raises:
            ValueError: If that side was not ranked.
        """
        if side not in self.counts:
            raise ValueError(f"Expected a ranked side, {', '.join(self.counts)} (got {side!r})")
        return self.counts[side].ranks(ties)

    def metrics(
        self,
        protocol: str | Protocol = "full",
        *,
        ties: Ties | None = None,
        k: tuple[int, ...] = HITS_AT,
        draw_seed: int | None = None,
    ) -> dict[str, Any]:
        r"""Returns the metrics of one protocol, named as :class:`RankMetrics` names them.

        Args:
            protocol (str or Protocol, optional): The protocol. (default: :obj:`"full"`)
            ties (str, optional): The tie rule, if not that of the protocol. (default: :obj:`None`)
            k (tuple, optional): The values of :math:`k` of Hits@k. (default: :obj:`(1, 3, 10)`)
            draw_seed (int, optional): Seed for one draw of the negatives of :obj:`"sampled50"`
                instead of the expectation; names then end in :obj:`_50_drawn`. (default:
                :obj:`None`)
        """
        drawn, protocol, ties = self._prepare(protocol, ties, k, draw_seed)
        sums = [query_values(part, protocol, ties, k).sum(0) for part in drawn.values()]
        metrics = metrics_by_side(torch.stack(sums), tuple(drawn), protocol, ties, k)
        return {**metrics, "dropped": self.num_dropped}

    def by_relation(
        self,
        protocol: str | Protocol = "full",
        *,
        ties: Ties | None = None,
        k: tuple[int, ...] = HITS_AT,
    ) -> dict[int, dict[str, Any]]:
        r"""Returns the metrics of each relation, by relation id.

        :obj:`protocol`, :obj:`ties` and :obj:`k` are those of :meth:`metrics`.
        """
        return self.by_group(self.triples[:, 1], protocol, ties=ties, k=k)

    def by_group(
        self,
        labels: Tensor | Mapping[Side, Tensor],
        protocol: str | Protocol = "full",
        *,
        ties: Ties | None = None,
        k: tuple[int, ...] = HITS_AT,
    ) -> dict[int, dict[str, Any]]:
        r"""Returns the metrics of each group of queries, by its label, in ascending order.

        :obj:`protocol`, :obj:`ties` and :obj:`k` are those of :meth:`metrics`. The queries are not
        ranked again.

        Args:
            labels (torch.Tensor or dict): An integer label for each triple :math:`(m)`, used for
                both of its queries; or labels by side.

        Raises:
            ValueError: If a ranked side has no labels, or not one integer for each triple.
        """
        counts, protocol, ties = self._prepare(protocol, ties, k, None)
        by_side = labels if isinstance(labels, Mapping) else dict.fromkeys(counts, labels)
        for side in counts:
            given = by_side.get(side)
            if given is None or given.shape != (len(self.triples),) or given.is_floating_point():
                found = None if given is None else (tuple(given.shape), given.dtype)
                raise ValueError(
                    f"Expected {len(self.triples)} integer labels of {side} queries (got {found})"
                )
        every = torch.cat([by_side[side].cpu().long() for side in counts])
        groups, position = torch.unique(every, return_inverse=True)
        sums = []
        for part, rows in zip(counts.values(), position.chunk(len(counts)), strict=True):
            values = query_values(part, protocol, ties, k)
            sums.append(values.new_zeros(groups.numel(), values.size(1)))
            sums[-1].index_add_(0, rows, values)
        return {
            group: metrics_by_side(row, tuple(counts), protocol, ties, k)
            for group, row in zip(groups.tolist(), torch.stack(sums, dim=1), strict=True)
        }

    def describe(self, protocol: str | Protocol = "full", ties: Ties | None = None) -> str:
        r"""Returns the protocol box of a report, which states how results of :obj:`protocol` and
        :obj:`ties` were computed."""
        protocol, ties = resolve_rules(protocol, ties)
        test_set = protocol.test_set if self.test_set is None else self.test_set
        own = "" if test_set == protocol.test_set else f" (the protocol ranks {protocol.test_set})"
        count, sides = len(self.triples), self.sides
        lines = {
            "protocol": f"{protocol.name}: {protocol.description}",
            "candidates": f"{protocol.candidates} ({self.num_candidates:,} before filtering)",
            "filter": self.filter,
            "ties": TIE_RULES[ties],
            "sides": "both (head and tail)" if sides == "both" else f"{sides} only",
            "test set": f"{test_set}{own}",
            "triples": f"{count:,} evaluated, {self.num_dropped:,} dropped",
        }
        if protocol.num_negatives is not None:
            few = sum(int(few_candidates(part, protocol).sum()) for part in self.counts.values())
            # Some negatives are then drawn several times.
            lines["small sets"] = (
                f"{few:,} of {count * len(self.counts):,} queries have fewer than "
                f"{protocol.num_negatives} candidates besides the true entity"
            )
        rows = [*lines.items(), *(("note", note) for note in self.notes)]
        return "\n".join(f"{name + ':':<12}{value}" for name, value in rows)

    def _prepare(
        self, protocol: str | Protocol, ties: Ties | None, k: tuple[int, ...], draw_seed: int | None
    ) -> tuple[dict[Side, RankCounts], Protocol, Ties]:
        protocol, ties = resolve_rules(protocol, ties, k)
        if draw_seed is None:
            return self.counts, protocol, ties
        if protocol.num_negatives is None:
            raise ValueError(
                f"Expected a protocol with sampled negatives for draw_seed={draw_seed} "
                f"(got {protocol.name!r}, which ranks all candidates)"
            )
        drawn = {
            side: sampled50_draw(part.better, part.ties, part.candidates, 2 * draw_seed + offset)
            for offset, (side, part) in enumerate(self.counts.items())
        }
        # What was drawn is ranked in full.
        return drawn, replace(protocol, num_negatives=None, suffix=f"{protocol.suffix}_drawn"), ties

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({self.triples.size(0)}, sides={self.sides}, "
            f"num_candidates={self.num_candidates}, num_dropped={self.num_dropped})"
        )


#: The strata of each of the two splits, in the order of their labels.
STRATA: dict[str, tuple[str, ...]] = {
    "half-link": ("half-link observed", "half-link not observed"),
    "distance": ("within 1 step", "2 steps", "3 steps or more", "unconnected"),
}

_FIGURES = ("hits@10", "mrr", "expected_hits@10", "expected_mrr")
_ENTRIES_PER_BLOCK = 2**24  # of rows of the adjacency matrix


def label_queries(observed: Tensor, triples: Tensor) -> dict[str, dict[Side, Tensor]]:
    r"""Returns the stratum of both queries of every triple, for each split of :obj:`STRATA`.

    A half-link is observed if some observed triple of the query's relation has the true answer on
    the answer's side. The distance of query entity and true answer is counted in observed triples
    of any relation, walked in either direction.

    Args:
        observed (torch.Tensor): The observed triples :math:`(n, 3)`.
        triples (torch.Tensor): The triples :math:`(m, 3)` that are ranked.
    """
    seen, asked = observed.cpu().numpy(), triples.cpu().numpy()
    size = 1 + max((int(part.max()) for part in (seen, asked) if part.size), default=0)
    half_links = {}
    for side in SIDES:
        end = 2 if side == "tail" else 0
        known = seen[:, 1] * size + seen[:, end]
        half_links[side] = torch.from_numpy(
            1 - np.isin(asked[:, 1] * size + asked[:, end], known).astype(np.int64)
        )
    distance = torch.from_numpy(_distances(seen, asked, size))
    return {"half-link": half_links, "distance": dict.fromkeys(SIDES, distance)}


def _distances(seen: np.ndarray, asked: np.ndarray, size: int) -> np.ndarray:
    """0 within one step, 1 for two, 2 for more, 3 for none at all."""
    ends = np.concatenate([seen[:, [0, 2]], seen[:, [2, 0]]])
    ones = np.ones(len(ends), dtype=np.int64)
    near = sp.csr_array((ones, (ends[:, 0], ends[:, 1])), shape=(size, size))
    near.data[:] = 1  # parallel triples are one link
    _, part = connected_components(near, directed=False)
    head, tail = asked[:, 0], asked[:, 2]
    found = np.where(part[head] == part[tail], 2, 3)
    degree = np.diff(near.indptr)
    block = np.cumsum(degree[head] + degree[tail]) // _ENTRIES_PER_BLOCK
    starts = np.flatnonzero(np.diff(block, prepend=-1))
    for rows in np.split(np.arange(len(asked)), starts[1:]):
        of_head, of_tail = near[head[rows]], near[tail[rows]]
        shared = np.asarray(of_head.multiply(of_tail).sum(axis=1)).ravel()
        found[rows[shared > 0]] = 1
    linked = np.isin(head * size + tail, ends[:, 0] * size + ends[:, 1])
    found[linked | (head == tail)] = 0
    return found.astype(np.int64)


def strata_metrics(
    result: RankingResult,
    labels: Mapping[str, Mapping[Side, Tensor]],
    protocol: str | Protocol = "full",
) -> dict[str, dict[str, Any]]:
    r"""Returns the number of queries, Hits@10 and MRR of every stratum that has queries, by name.

    Args:
        result (RankingResult): The ranking; nothing is ranked again.
        labels (dict): What :func:`label_queries` gives for the triples that were ranked.
        protocol (str or Protocol, optional): The protocol. (default: :obj:`"full"`)
    """
    protocol = get_protocol(protocol)
    names = [protocol.key(name) for name in _FIGURES]
    found: dict[str, dict[str, Any]] = {}
    for split, strata in STRATA.items():
        groups = result.by_group(labels[split], protocol)
        for label, metrics in groups.items():
            found[strata[label]] = {name: metrics[name] for name in ("count", *names)}
    return found
