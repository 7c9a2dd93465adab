import math
from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.errors import DataError
from sheafprop.query.link_probabilities import LinkProbabilities, RowPart
from sheafprop.query.max_product import best_entities, complement, intersect, raise_truth, unite
from sheafprop.query.query import QueryShape

# Numbers in a block of rows.
_BLOCK_ROWS = 2**23


class Truth(NamedTuple):
    """Logs of truth ``[Q, N]`` at some vertex, with the limit and share of :class:`QueryTruth`."""

    value: Tensor
    limit: Tensor
    share: Tensor


class Beam(NamedTuple):
    """Entities at a vertex ``[Q, k]``, the logs of their truths, and the largest of the others."""

    entity: Tensor
    value: Tensor
    following: Tensor


class EntitySearch:
    """The search for the entities between, from the anchors to the target; see
    :class:`EntityScorer`.

    Args:
        links (LinkProbabilities): The probability of every link.
        width (int): How many entities stand at a vertex between.
    """

    def __init__(self, links: LinkProbabilities, width: int) -> None:
        self.links, self.width = links, width

    def beam(self, log_truth: Tensor) -> Beam:
        """The entities from which a query goes on, by the logs of truth ``[Q, N]``."""
        return Beam(*best_entities(log_truth, self.width))

    def anchor_beam(self, entity: Tensor) -> Beam:
        """The same for given entities ``[Q]``."""
        value = torch.zeros(len(entity), 1, dtype=self.links.dtype, device=entity.device)
        return Beam(entity.unsqueeze(1), value, torch.full_like(value[:, 0], -math.inf))

    def truth(self, shape: QueryShape, slots: Tensor) -> Truth:
        """The truth of every entity as the answer to queries of a shape, ``[Q, num_slots]``."""
        if shape.operator == "anchor":
            value = self._nothing(len(slots)).scatter_(1, slots, 0)
            return Truth(value, *self._unbounded(len(slots)))
        if shape.operator == "via":
            return self._follow(shape.branches[0], slots)
        parts = self._branches(shape, slots)
        if shape.operator == "not":
            return self._negate(parts[0])
        join = intersect if shape.operator == "and" else unite
        value, share = join([part.value for part in parts]), parts[0].share
        for part in parts[1:]:
            share = share * part.share if shape.operator == "and" else share.minimum(part.share)
        limit = self._unbounded(len(slots))[0]
        cut = torch.stack([part.limit for part in parts]).amax(0) > -math.inf
        for rows in cut.nonzero().flatten().split(max(1, _BLOCK_ROWS // value.shape[1])):
            most = join([part.value[rows].maximum(part.limit[rows, None]) for part in parts])
            limit[rows] = most.masked_fill_(most <= value[rows], -math.inf).amax(1)
        return Truth(value, limit, share)

    def _branches(self, shape: QueryShape, slots: Tensor) -> list[Truth]:
        """The truths of all branches; those of one shape are searched together, so that what they
        have in common is scored once."""
        own = [slots[:, part] for part in shape.branch_slots]
        found: dict[int, Truth] = {}
        for kind, places in _groups(shape).items():
            truth = self.truth(kind, torch.cat([own[place] for place in places]))
            parts = (part.tensor_split(len(places)) for part in truth)
            found.update(zip(places, map(Truth, *parts), strict=True))
        return [found[place] for place in range(len(own))]

    def _follow(self, branch: QueryShape, slots: Tensor) -> Truth:
        relation, inner = slots[:, -1], slots[:, :-1]
        limit, share = self._unbounded(len(slots))
        if branch.operator == "anchor":
            beam = self.anchor_beam(inner[:, 0])
        else:
            truth = self.truth(branch, inner)
            beam, share = self.beam(truth.value), truth.share
            limit = truth.limit.maximum(beam.following)
            del truth
        out = self._nothing(len(slots))
        self._raise(out, beam, relation)
        return Truth(out, limit, share)

    def _raise(self, out: Tensor, beam: Beam, relation: Tensor) -> None:
        """Follows a relation from the entities of a beam; every row is asked for once."""
        query, place = (beam.value > -math.inf).nonzero(as_tuple=True)
        entity = beam.entity[query, place]
        value, count = beam.value[query, place], self.links.num_entities
        key, order = (relation[query] * count + entity).sort(stable=True)
        query, value = query[order], value[order]
        pair, row, size = key.unique_consecutive(return_inverse=True, return_counts=True)
        ends = [0, *size.cumsum(0).tolist()]
        source = pair % count
        kinds, numbers = (pair // count).unique_consecutive(return_counts=True)
        step, first = max(1, _BLOCK_ROWS // count), 0
        for kind, number in zip(kinds.tolist(), numbers.tolist(), strict=True):
            for lo in range(first, first + number, step):
                hi = min(lo + step, first + number)
                own = slice(ends[lo], ends[hi])
                pairs = (query[own], row[own] - lo, value[own])
                for part in self.links.row_parts(source[lo:hi], kind, of=len(pair)):
                    raise_truth(out, part.table, *_pairs_of(part, hi - lo, *pairs))
            first += number

    def _negate(self, inner: Truth) -> Truth:
        value = torch.empty_like(inner.value)
        for rows in torch.arange(len(value)).split(max(1, _BLOCK_ROWS // value.shape[1])):
            value[rows] = complement(inner.value[rows])
        if self.links.outside is not None:
            value.masked_fill_(self.links.outside, -math.inf)
        # What was too low within is too high here. Where it may have been too high, no bound is
        # kept.
        limit = torch.where(inner.share < 1, 0.0, -math.inf).to(value)
        return Truth(value, limit, -torch.expm1(inner.limit))

    def _nothing(self, count: int) -> Tensor:
        shape = (count, self.links.num_entities)
        return torch.full(shape, -math.inf, dtype=self.links.dtype, device=self.links.device)

    def _unbounded(self, count: int) -> tuple[Tensor, Tensor]:
        """The bounds where nothing was cut."""
        limit = torch.full((count,), -math.inf, dtype=self.links.dtype, device=self.links.device)
        return limit, torch.ones_like(limit)


def _pairs_of(
    part: RowPart, count: int, query: Tensor, row: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs of some of the rows, with the places of these."""
    place = row.new_full((count,), -1)
    place[part.where] = part.place
    row = place[row]
    if len(part.where) == count:
        return query, row, value
    own = row >= 0
    return query[own], row[own], value[own]


def check_bounded(shape: QueryShape) -> None:
    """Refuses queries that all entities but some would answer.

    Raises:
        DataError: If the whole query, or what a relation is walked from, is a negation, an ``or``
            with a negated branch, or an ``and`` of negations only.
    """
    if reason := _everything_but(shape):
        raise DataError(
            f"all entities but some would answer {reason}: join it by 'and' with a query that is "
            "not negated"
        )


def _everything_but(shape: QueryShape) -> str:
    """What in a query stands for all entities but some; empty if nothing does."""
    inner = [_everything_but(branch) for branch in shape.branches]
    if shape.operator == "via" and inner[0]:
        raise DataError(
            f"a relation cannot be walked from all entities but some, as {inner[0]} gives them: "
            "join it by 'and' with a query that is not negated"
        )
    if shape.operator == "not":
        return "" if inner[0] else "a negation, not(...)"
    if shape.operator == "and":
        return "an 'and' of negations only" if all(inner) else ""
    return "an 'or' with a negated branch" if any(inner) else ""


def waiting_tables(shape: QueryShape) -> int:
    """How many tables of truth wait at once, with two that an operator works on."""
    if shape.operator == "anchor":
        return 1
    needs, waiting = [], 0
    for kind, places in _groups(shape).items():
        needs.append(waiting + len(places) * waiting_tables(kind))
        waiting += len(places)
    return max(waiting + 1, *needs)


def _groups(shape: QueryShape) -> dict[QueryShape, list[int]]:
    """The branches by their shape, in the order in which these first occur."""
    groups: dict[QueryShape, list[int]] = {}
    for place, branch in enumerate(shape.branches):
        groups.setdefault(branch, []).append(place)
    return groups
