"""Random splits of one graph into old and new entities, and into disjoint graphs."""

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
    r"""Masks of the new entities and of the parts. Every triple is in exactly one part.

    Args:
        new_entity_mask: New entities, bool ``[num_entities]``.
        train_mask: Triples among old entities, bool ``[m]``.
        observed_mask: Observed triples of new entities, bool ``[m]``.
        valid_mask: Validation triples of new entities, bool ``[m]``.
        test_mask: Test triples of new entities, bool ``[m]``.
        dropped_mask: Triples of relations that cannot keep a training triple, bool ``[m]``.
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
    r"""Randomly selects new entities and splits their triples.

    Triples among old entities are the training graph. An entity without a training triple is new as
    well and counts towards the fraction. Every relation keeps a training triple, so the entities of
    that triple stay old; only if this leaves too few candidates are the triples of the relation
    dropped. Every new entity keeps an observed triple. Duplicates are assigned to the same part.

    Args:
        triples: Id triples ``(head, relation, tail)`` of shape ``[m, 3]``.
        num_entities: The number of entities.
        new_fraction: Fraction of the entities with triples that become new.
        observed_fraction: Fraction of their triples that are observed.
        valid_fraction: Fraction of their triples used for validation. The remaining ones are test
            triples.
        seed: Random seed. Splits are the same on every machine.

    Raises:
        DataError: If no training triple is left, or no entity can be new.
        ValueError: If a fraction is out of range.
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
            f"the graph of {int(used.sum())} entities and {len(unique)} distinct triples cannot be "
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
    r"""Randomly selects triples to hold out, so that every entity and relation keeps one.

    The first triple of each entity and relation in a random order is kept. If fewer triples than
    requested remain, all of them are held out. Duplicates are held out together.

    Args:
        triples: Id triples of shape ``[m, 3]``.
        fraction: Fraction of the distinct triples to hold out.
        seed: Random seed.

    Returns:
        Mask of the triples held out, bool ``[m]``.
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
    r"""Assigns each triple of new entities to a part: 1 observed, 2 validation, 3 test.

    Args:
        triples: Distinct id triples of shape ``[m, 3]`` in random order.
        new: New entities, bool ``[num_entities]``.
        observed_fraction: Fraction of observed triples; more if an entity would have none.
        valid_fraction: Fraction of validation triples.

    Returns:
        int64 of shape ``[m]``.
    """
    num_observed = round(observed_fraction * len(triples))
    num_valid = min(round(valid_fraction * len(triples)), len(triples) - num_observed)
    part = np.repeat([1, 2, 3], [num_observed, num_valid, len(triples) - num_observed - num_valid])
    # The first triple of each new entity is observed, whether or not it is among the first ones.
    entity, first = np.unique(triples[:, [0, 2]].ravel(), return_index=True)
    part[first[new[entity]] // 2] = 1
    return part


def check_fractions(new_fraction: float, observed_fraction: float, valid_fraction: float) -> None:
    """Checks the fractions of a split.

    Raises:
        ValueError: If a fraction is out of range.
    """
    _check_fraction("new_fraction", new_fraction)
    _check_fraction("observed_fraction", observed_fraction)
    _check_fraction("valid_fraction", valid_fraction)
    if observed_fraction + valid_fraction > 1:
        raise ValueError(
            "'observed_fraction' + 'valid_fraction' must not exceed 1 "
            f"(got {observed_fraction} and {valid_fraction})"
        )


def _check_fraction(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"'{name}' must be between 0 and 1 (got {value})")


def _unique_triples(triples: Tensor) -> tuple[np.ndarray, Tensor]:
    """Returns the distinct triples in the order of first appearance, and the index of each row."""
    (codes,) = triple_codes(triples)
    _, first, inverse = np.unique(codes.numpy(), return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return triples.cpu().numpy()[np.sort(first)], torch.from_numpy(rank[inverse])


def _choose_new(
    triples: np.ndarray, order: np.ndarray, num_entities: int, wanted: int
) -> np.ndarray:
    """Selects the longest prefix of an order that makes at most ``count`` entities new.

    Entities that lose their last training triple become new as well. Their number grows with the
    prefix, so a binary search finds its length.
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


# Smaller differences of shares count as ties, which the seed breaks.
_JITTER = 1e-3
# Maximum number of entities of a region.
_REGION_SIZE = 200


@dataclass(frozen=True)
class DisjointSplit:
    r"""Masks of the new entities and of the triples of both graphs.

    Args:
        new_entity_mask: New entities, bool ``[num_entities]``.
        train_mask: Triples among old entities, bool ``[m]``.
        new_mask: Triples among new entities whose relation has a training triple, bool ``[m]``.
        dropped_mask: All other triples, bool ``[m]``.
    """

    new_entity_mask: Tensor
    train_mask: Tensor
    new_mask: Tensor
    dropped_mask: Tensor


def disjoint_split(
    triples: Tensor, num_entities: int, *, new_fraction: float = 0.35, seed: int = 0
) -> DisjointSplit:
    r"""Splits a graph into two graphs without a common entity, cutting few triples.

    New entities form regions. A region grows from a random entity: the entity with the largest
    fraction of its triples inside joins next, until the region is full or has no more neighbors.
    Duplicates are assigned to the same part.

    Args:
        triples: Id triples ``(head, relation, tail)`` of shape ``[m, 3]``.
        num_entities: The number of entities.
        new_fraction: Fraction of the entities with triples that become new.
        seed: Random seed. Splits are the same on every machine.

    Raises:
        DataError: If one of the two graphs has no triple.
        ValueError: If ``new_fraction`` is not between 0 and 1.
    """
    if not 0 < new_fraction < 1:
        raise ValueError(f"'new_fraction' must be between 0 and 1 (got {new_fraction})")
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
