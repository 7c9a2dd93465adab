"""Splits queries by what the observed graph knows of their true answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from sheafprop.ranking.protocols import SIDES, Protocol, Side, get_protocol
from sheafprop.ranking.ranking_result import RankingResult

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
