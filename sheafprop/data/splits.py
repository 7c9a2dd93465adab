"""Seeded splits of one graph: new entities, triples held out for validation, and two graphs that
share no entity."""

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sheafprop.data.graph_counts import triple_codes
from sheafprop.errors import DataError
from sheafprop.seeding import combine_keys, seeded_uniform


@dataclass(frozen=True)
class SemiInductiveSplit:
    r"""Which entities are new, and the part of every triple: exactly one of the masks is true.

    Args:
        new_entity_mask: True for the new entities, of shape ``[num_entities]``.
        train_mask: Triples among old entities, of shape ``[m]`` as the others.
        observed_mask: Triples of new entities that are known.
        valid_mask: Triples of new entities to predict, for validation.
        test_mask: Triples of new entities to predict, for the test.
        dropped_mask: Triples of relations that could not keep a training triple.
    """

    new_entity_mask: Tensor
    train_mask: Tensor
    observed_mask: Tensor
    valid_mask: Tensor
    test_mask: Tensor
    dropped_mask: Tensor


def semi_inductive_split(
    triples: Tensor,
    num_entities: int,
    *,
    new_fraction: float = 0.25,
    observed_fraction: float = 0.8,
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> SemiInductiveSplit:
    r"""Makes some entities new and splits the triples that touch them.

    The triples among old entities are the training graph. An entity that is left without a training
    triple is new, too, and counts towards the fraction. Every relation keeps a training triple, for
    which its entities stay old; only where that would leave too few entities to choose from, the
    relation's triples are dropped. A new entity left without an observed triple gets one back from
    the triples to predict. Copies of a triple stay together.

    Args:
        triples: Id triples ``(head, relation, tail)`` of shape ``[m, 3]``.
        num_entities: The number of entities.
        new_fraction: The share of the entities, among those with triples, that become new.
        observed_fraction: The share of their triples that is observed.
        valid_fraction: The share that is kept for validation; the rest is for the test.
        seed: The seed. Equal triples, fractions and seeds give equal splits on every machine.

    Raises:
        DataError: If no triple is left to train on, or no entity can be new.
        ValueError: If a fraction is out of its range.
    """
    check_fractions(new_fraction, observed_fraction, valid_fraction)
    unique, inverse = _unique_triples(triples)
    head, relation, tail = unique.T
    used = np.zeros(num_entities, dtype=bool)
    used[head] = used[tail] = True
    wanted = max(1, round(new_fraction * int(used.sum())))
    order = np.argsort(seeded_uniform(combine_keys(0, np.arange(num_entities)), 1, seed)[:, 0])
    draw = seeded_uniform(combine_keys(1, np.arange(len(unique))), 1, seed)[:, 0]

    pool = np.ones(len(unique), dtype=bool)
    protected = ~used
    while True:
        new = _choose_new(unique[pool], order[~protected[order]], num_entities, wanted)
        train = pool & ~new[head] & ~new[tail]
        missing = np.setdiff1d(relation[pool], relation[train])
        if len(missing) == 0:
            break
        for lost in missing:
            rows = np.flatnonzero(relation == lost)
            costs = (~protected[head[rows]]).astype(int) + ~protected[tail[rows]]
            row = rows[np.lexsort((draw[rows], costs))[0]]
            kept = protected.copy()
            kept[[head[row], tail[row]]] = True
            if num_entities - kept.sum() >= wanted:
                protected = kept
            else:
                pool[rows] = False
    if not (train.any() and new.any()):
        raise DataError(
            f"The graph of {int(used.sum())} entities and {len(unique)} distinct triples cannot be "
            f"split: with {int(new.sum())} new entities, {int(train.sum())} triples are left to "
            f"train on. It needs more triples, or a lower 'new_fraction' (got {new_fraction})"
        )
    touching = np.flatnonzero(pool & ~train)
    touching = touching[np.argsort(draw[touching])]
    part = np.full(len(unique), 4)
    part[train] = 0
    part[touching] = divide_triples(unique[touching], new, observed_fraction, valid_fraction)
    masks = [torch.from_numpy(part == number)[inverse] for number in range(5)]
    return SemiInductiveSplit(torch.from_numpy(new), *masks)


def hold_out_mask(triples: Tensor, *, fraction: float = 0.1, seed: int = 0) -> Tensor:
    r"""Chooses triples to hold out of a graph, so that the rest still has everything.

    Every entity and every relation keeps a triple: of each, the first in a seeded order stays.
    Where the others are fewer than asked for, all of them are held out. Copies of a triple stay
    together.

    Args:
        triples: Id triples of shape ``[m, 3]``.
        fraction: The share of the distinct triples to hold out.
        seed: The seed.

    Returns:
        A mask of shape ``[m]``, true for the triples held out.
    """
    _check_fraction("fraction", fraction)
    unique, inverse = _unique_triples(triples)
    order = np.argsort(seeded_uniform(combine_keys(2, np.arange(len(unique))), 1, seed)[:, 0])
    shuffled = unique[order]
    needed = np.zeros(len(unique), dtype=bool)
    needed[np.unique(shuffled[:, [0, 2]].ravel(), return_index=True)[1] // 2] = True
    needed[np.unique(shuffled[:, 1], return_index=True)[1]] = True
    held = np.zeros(len(unique), dtype=bool)
    free = order[~needed]
    held[free[: round(fraction * len(unique))]] = True
    return torch.from_numpy(held)[inverse]


def divide_triples(
    triples: np.ndarray, new: np.ndarray, observed_fraction: float, valid_fraction: float
) -> np.ndarray:
    r"""The part of each triple of new entities: 1 observed, 2 validation, 3 test.

    Args:
        triples: Id triples of shape ``[m, 3]`` in a random order, each once.
        new: True for the new entities, of shape ``[num_entities]``.
        observed_fraction: The share that is observed; more where an entity would have none.
        valid_fraction: The share that is kept for validation.

    Returns:
        int64 of shape ``[m]``.
    """
    num_observed = round(observed_fraction * len(triples))
    num_valid = min(round(valid_fraction * len(triples)), len(triples) - num_observed)
    part = np.repeat([1, 2, 3], [num_observed, num_valid, len(triples) - num_observed - num_valid])
    # The first triple of each new entity is observed: already, as the observed ones come first,
    # or else it is the one that the entity gets back.
    entity, first = np.unique(triples[:, [0, 2]].ravel(), return_index=True)
    part[first[new[entity]] // 2] = 1
    return part


def check_fractions(new_fraction: float, observed_fraction: float, valid_fraction: float) -> None:
    """Raises :class:`ValueError` unless the fractions of a split are in their ranges."""
    _check_fraction("new_fraction", new_fraction)
    _check_fraction("observed_fraction", observed_fraction)
    _check_fraction("valid_fraction", valid_fraction)
    if observed_fraction + valid_fraction > 1:
        raise ValueError(
            "'observed_fraction' and 'valid_fraction' must not exceed 1 together "
            f"(got {observed_fraction} and {valid_fraction})"
        )


def _check_fraction(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"'{name}' must lie between 0 and 1 (got {value})")


def _unique_triples(triples: Tensor) -> tuple[np.ndarray, Tensor]:
    """The distinct triples in the order of first appearance, and the number of each row."""
    (codes,) = triple_codes(triples)
    _, first, inverse = np.unique(codes.numpy(), return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return triples.cpu().numpy()[np.sort(first)], torch.from_numpy(rank[inverse])


def _choose_new(
    triples: np.ndarray, order: np.ndarray, num_entities: int, wanted: int
) -> np.ndarray:
    """The longest prefix of the order that makes at most the wanted number of entities new.

    Entities which lose their last training triple are new as well, so the count grows with the
    prefix and a binary search finds its length.
    """
    used = np.zeros(num_entities, dtype=bool)
    used[triples[:, 0]] = used[triples[:, 2]] = True

    def new_entities(length: int) -> np.ndarray:
        new = np.zeros(num_entities, dtype=bool)
        new[order[:length]] = True
        kept = triples[~new[triples[:, 0]] & ~new[triples[:, 2]]]
        has_training = np.zeros(num_entities, dtype=bool)
        has_training[kept[:, 0]] = has_training[kept[:, 2]] = True
        return used & ~has_training

    low, high = 1, max(1, min(wanted, len(order)))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if new_entities(middle).sum() <= wanted else (low, middle - 1)
    return new_entities(low)


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
    triples: Tensor, num_entities: int, *, new_fraction: float = 0.35, seed: int = 0
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
