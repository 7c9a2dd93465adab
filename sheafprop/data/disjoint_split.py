"""A seeded split of one graph into two that share no entity."""

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sheafprop.errors import DataError
from sheafprop.seeding import combine_keys, seeded_uniform

# Differences of shares below this are broken by the seed.
_JITTER = 1e-3
# Entities in a region, at most.
_REGION_SIZE = 200


@dataclass(frozen=True)
class DisjointSplit:
    r"""Which entities are set apart, and what that leaves of the triples.

    Args:
        new_entity_mask: True for the entities set apart, bool ``[num_entities]``.
        train_mask: Triples among the others, bool ``[m]``.
        new_mask: Triples among the entities set apart whose relation keeps a training triple.
        dropped_mask: All other triples: between both sides, or of a lost relation.
    """

    new_entity_mask: Tensor
    train_mask: Tensor
    new_mask: Tensor
    dropped_mask: Tensor


def disjoint_split(
    triples: Tensor,
    num_entities: int,
    *,
    new_fraction: float = 0.35,
    seed: int = 0,
) -> DisjointSplit:
    r"""Sets regions of a graph apart, so that few triples are cut.

    A region grows from a seeded entity: the entity with the largest share of its triple ends inside
    joins next, until the region is full or no entity is left beside it. Copies of a triple stay
    together.

    Args:
        triples: Id triples ``(head, relation, tail)`` of shape ``[m, 3]``.
        num_entities: The number of entities.
        new_fraction: The share of the entities, among those with triples, that are set apart.
        seed: The seed. Equal triples and seeds give equal splits on every machine.

    Raises:
        DataError: If one of the two graphs has no triple.
        ValueError: If ``new_fraction`` does not lie between 0 and 1.
    """
    if not 0 < new_fraction < 1:
        raise ValueError(f"'new_fraction' must lie between 0 and 1 (got {new_fraction})")
    head, relation, tail = triples.cpu().numpy().T
    unique = np.unique(triples.cpu().numpy(), axis=0)
    ends = np.concatenate([unique[:, 0], unique[:, 2]])
    order = np.argsort(ends, kind="stable")
    neighbour = np.concatenate([unique[:, 2], unique[:, 0]])[order]
    start = np.searchsorted(ends[order], np.arange(num_entities + 1))
    degree = np.diff(start)
    used = np.flatnonzero(degree)
    wanted = round(new_fraction * len(used))
    draws = seeded_uniform(combine_keys(3, np.arange(num_entities)), 2, seed)
    roots = used[np.argsort(draws[used, 0])]
    new = np.zeros(num_entities, dtype=bool)
    inside = np.zeros(num_entities, dtype=np.int64)
    count = 0

    def key(entity: int) -> float:
        return -inside[entity] / degree[entity] - _JITTER * draws[entity, 1]

    for root in roots:
        if count >= wanted:
            break
        heap, size = [(key(root), root)], 0
        while heap and size < _REGION_SIZE and count < wanted:
            found, entity = heapq.heappop(heap)
            if new[entity] or found > key(entity):
                continue  # inside already, or listed again since with a larger share
            new[entity] = True
            size, count = size + 1, count + 1
            for other in neighbour[start[entity] : start[entity + 1]]:
                inside[other] += 1
                if not new[other]:
                    heapq.heappush(heap, (key(other), other))
    train = ~new[head] & ~new[tail]
    kept = np.zeros(int(relation.max(initial=-1)) + 1, dtype=bool)
    kept[relation[train]] = True
    apart = new[head] & new[tail] & kept[relation]
    if not (train.any() and apart.any()):
        raise DataError(
            f"the graph of {len(used)} entities and {len(unique)} distinct triples cannot be split "
            f"into two without a common entity: {int(train.sum())} and {int(apart.sum())} triples "
            "are left; it needs more triples"
        )
    masks = (new, train, apart, ~train & ~apart)
    return DisjointSplit(*(torch.from_numpy(mask) for mask in masks))
