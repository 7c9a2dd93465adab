from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.query.entity_scorer import EntityScorer
from sheafprop.query.query import Operator, QueryShape
from sheafprop.query.query_batch import QueryBatch
from sheafprop.ranking.triple_filter import check_ids

# Numbers in the rows of a vertex that are kept while a query is explained, or read at once.
_NUMBERS = 2**24


@dataclass(frozen=True)
class Derivation:
    r"""A derivation of an answer to a query: a tree of entities and of the links that lead to them.

    Args:
        operator: The operator of the query at this vertex.
        entity: The entity at this vertex.
        log_truth: The log of the truth of this derivation at this vertex.
        branches: The premises: none for an anchor; the start of a relation; all branches of an
            ``and``; the selected branch of an ``or``; for a ``not``, the best derivation of the
            negated query (even if its truth is zero), which lowers the truth, or none.
        relation: For ``via`` the relation, :math:`r + R` for the inverse of :math:`r`.
        log_probability: For ``via`` the log of the probability of its link.
        is_fact: For ``via``, whether its link is a fact; otherwise it is predicted.
    """

    operator: Operator
    entity: int
    log_truth: float
    branches: tuple[Derivation, ...] = ()
    relation: int | None = None
    log_probability: float | None = None
    is_fact: bool | None = None

    @property
    def truth(self) -> float:
        """The truth of this derivation at this vertex."""
        return math.exp(self.log_truth)

    def links(self, depth: int = 0, negated: bool = False) -> Iterator[dict[str, Any]]:
        """Yields the links of the tree in ids, one record each; the links that lead to an entity
        follow it.

        ``depth`` counts the links from there to the answer; a link is ``negated`` if it lowers the
        truth of the answer.
        """
        if self.operator == "via":
            assert self.log_probability is not None
            yield {
                "depth": depth,
                "source": self.branches[0].entity,
                "relation": self.relation,
                "target": self.entity,
                "is_fact": self.is_fact,
                "probability": math.exp(self.log_probability),
                "negated": negated,
            }
        deeper = depth + (self.operator == "via")
        for branch in self.branches:
            yield from branch.links(deeper, negated ^ (self.operator == "not"))

    def tree(
        self, entity: Callable[[int], str] = str, relation: Callable[[int], str] = str
    ) -> dict[str, Any]:
        """Returns the tree as nested dictionaries, for figures and JSON files.

        Args:
            entity, relation (callable, optional): Return the labels of ids. (default: the ids)
        """
        record: dict[str, Any] = {
            "operator": self.operator,
            "entity": entity(self.entity),
            "truth": self.truth,
        }
        if self.operator == "via":
            assert self.relation is not None
            assert self.log_probability is not None
            record["relation"] = relation(self.relation)
            record["link"] = "fact" if self.is_fact else "predicted"
            record["probability"] = math.exp(self.log_probability)
        record["branches"] = [branch.tree(entity, relation) for branch in self.branches]
        return record


@torch.no_grad()
def explain_answers(
    scorer: EntityScorer, batch: QueryBatch, answers: Tensor, num_derivations: int = 1
) -> list[list[Derivation]]:
    r"""Returns the best derivations of an answer to each query, in descending order.

    Derivations differ in an interior entity or in the branch of an ``or``. An entity of truth zero
    has no derivation. The truth of an answer to an ``or`` is larger than that of its best
    derivation, because it combines all branches; otherwise the two are equal.

    Args:
        scorer (EntityScorer): The scorer of the answers.
        batch (QueryBatch): The queries.
        answers (Tensor): The entity to explain for each of them, int64 ``[Q]``.
        num_derivations (int, optional): The maximum number of derivations.

    Raises:
        ValueError: If an id is out of range, or ``num_derivations`` is not positive.
    """
    check_integer("num_derivations", num_derivations, 1)
    links = scorer.links
    batch.check_ids(links.num_entities, links.num_relations)
    check_ids(answers, links.num_entities, "answer")
    if len(answers) != len(batch):
        raise ValueError(f"expected an answer for each of {len(batch)} queries ({len(answers)})")
    links.make_room()
    slots, out = batch.slots.to(links.device), []
    explainer = None
    for row, entity in zip(slots.split(1), answers.tolist(), strict=True):
        # Answers to one query share what leads to the vertices between.
        if explainer is None or not row.equal(explainer.slots):
            explainer = _Explainer(scorer, row)
        found = explainer.best(batch.shape, 0, entity, num_derivations)
        out.append([one for one in found if one.log_truth > -math.inf])
    return out


@dataclass(eq=False)
class _Sources:
    """What a relation of one query is walked from: ids, ascending, and their logs of truth."""

    entity: Tensor
    value: Tensor
    rows: Tensor | None = None


class _Explainer:
    """Derivations of the answers to one query, whose subtrees are named by their first slot and
    their shape."""

    def __init__(self, scorer: EntityScorer, slots: Tensor) -> None:
        self.search, self.links, self.slots = scorer.search, scorer.links, slots
        self.sources: dict[tuple[int, QueryShape], _Sources] = {}
        self.found: dict[tuple[int, QueryShape, int], list[Derivation]] = {}

    def best(self, shape: QueryShape, start: int, entity: int, count: int) -> list[Derivation]:
        """The best derivations that end at an entity.

        Some may be impossible by a negation in them: a negation of these rests on them, too.
        """
        key = (start, shape, entity)
        if key not in self.found:
            self.found[key] = self._derive(shape, start, entity, count)
        return self.found[key]

    def _derive(self, shape: QueryShape, start: int, entity: int, count: int) -> list[Derivation]:
        if shape.operator == "anchor":
            given = int(self.slots[0, start]) == entity
            return [Derivation("anchor", entity, 0.0)] if given else []
        if shape.operator == "via":
            return self._follow(shape, start, entity, count)
        if shape.operator == "not":
            return self._negate(shape, start, entity)
        parts = [
            self.best(branch, start + own.start, entity, count)
            for branch, own in zip(shape.branches, shape.branch_slots, strict=True)
        ]
        joined: list[tuple[float, tuple[Derivation, ...]]] = []
        if shape.operator == "or":
            joined += [(one.log_truth, (one,)) for part in parts for one in part]
        else:
            joined.append((0.0, ()))
            for part in parts:
                pairs = [(t + one.log_truth, (*own, one)) for t, own in joined for one in part]
                joined = heapq.nlargest(count, pairs, key=lambda pair: pair[0])
        return [
            Derivation(shape.operator, entity, value, branches)
            for value, branches in heapq.nlargest(count, joined, key=lambda pair: pair[0])
        ]

    def _negate(self, shape: QueryShape, start: int, entity: int) -> list[Derivation]:
        slots = self.slots[:, start : start + shape.num_slots]
        value = float(self.search.truth(shape, slots).value[0, entity])
        against = tuple(self.best(shape.branches[0], start, entity, 1))
        return [Derivation("not", entity, value, against)]

    def _follow(self, shape: QueryShape, start: int, entity: int, count: int) -> list[Derivation]:
        inner = shape.branches[0]
        relation = int(self.slots[0, start + shape.num_slots - 1])
        sources = self._sources(shape, start, relation)
        link = self._column(sources, relation, entity)
        bound = sources.value + link
        found: list[Derivation] = []
        for place in bound.argsort(descending=True, stable=True).tolist():
            # No derivation that leads over a source is better than its truth allows.
            last = found[-1].log_truth if len(found) == count else -math.inf
            if float(bound[place]) <= last:
                break
            source, step = int(sources.entity[place]), float(link[place])
            is_fact = self.links.is_fact(source, relation, entity)
            found += [
                Derivation("via", entity, one.log_truth + step, (one,), relation, step, is_fact)
                for one in self.best(inner, start, source, count)
            ]
            found = heapq.nlargest(count, found, key=lambda one: one.log_truth)
        return found

    def _sources(self, shape: QueryShape, start: int, relation: int) -> _Sources:
        if (start, shape) not in self.sources:
            inner = shape.branches[0]
            slots = self.slots[:, start : start + inner.num_slots]
            if inner.operator == "anchor":
                beam = self.search.anchor_beam(slots[:, 0])
            else:
                beam = self.search.beam(self.search.truth(inner, slots).value)
            entity, order = beam.entity[0].sort()
            value = beam.value[0, order]
            possible = value > -math.inf
            sources = _Sources(entity[possible], value[possible])
            if len(sources.entity) * self.links.num_entities <= _NUMBERS:
                sources.rows = self.links.log_rows(sources.entity, relation)
            self.sources[start, shape] = sources
        return self.sources[start, shape]

    def _column(self, sources: _Sources, relation: int, entity: int) -> Tensor:
        """The logs of the probabilities of the links from all sources to an entity."""
        if sources.rows is not None:
            return sources.rows[:, entity]
        step = max(1, _NUMBERS // self.links.num_entities)
        parts = [
            self.links.log_rows(part, relation)[:, entity] for part in sources.entity.split(step)
        ]
        return torch.cat(parts)
