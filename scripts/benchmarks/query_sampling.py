"""Draws logical queries from the graphs of a data set, with their answers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.query_data import QueryData
from sheafprop.data.answer_sets import AnswerSets
from sheafprop.query.graph_executor import GraphExecutor, differences_of
from sheafprop.query.query import QueryShape, structure
from sheafprop.query.query_batch import QueryBatch

_SPLITS: tuple[Literal["train", "valid", "test"], ...] = ("train", "valid", "test")
# Draws of a relation, to avoid a pair of consecutive ones that BetaE avoids.
_DRAWS = 40
# Sets of answers may have so many members at most.
_MOST_ANSWERS = 1000
# Blocks of walks without any new query, after which there seem to be no more.
_PATIENCE = 20


class BackwardWalk:
    r"""Random walks against the direction of the edges, inverse ones included, many at once.

    Args:
        triples (ndarray): Id triples ``(head, relation, tail)``, int64 ``[m, 3]``.
        num_entities (int): The number of entities.
        num_relations (int): The number of relations :math:`R`; the inverse of :math:`r` is
            :math:`r + R`.
    """

    def __init__(self, triples: NDArray[np.int64], num_entities: int, num_relations: int) -> None:
        head, relation, tail = triples.T
        self.start, self.relation, self.source_start, self.source = _group_triples(
            np.concatenate([tail, head]),
            np.concatenate([relation, relation + num_relations]),
            np.concatenate([head, tail]),
            num_entities,
        )
        self.entities = np.flatnonzero(np.diff(self.start))

    def queries(
        self, shape: QueryShape, answers: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """One query of the shape for every answer, as slots ``[n, num_slots]``."""
        return self._fill(shape, answers, None, rng)

    def _fill(
        self,
        shape: QueryShape,
        current: NDArray[np.int64],
        following: NDArray[np.int64] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Slots of queries that ``current`` answers; ``following`` are the relations after."""
        if shape.operator == "anchor":
            return current[:, None]
        if shape.operator != "via":
            follow = following if shape.operator == "not" else None
            return np.concatenate(
                [self._fill(branch, current, follow, rng) for branch in shape.branches], axis=1
            )
        pair = self._draw(current, rng)
        if following is not None:
            for _ in range(_DRAWS - 1):
                own = self.relation[pair]
                again = np.flatnonzero((own // 2 == following // 2) & (own != following))
                if len(again) == 0:
                    break
                pair[again] = self._draw(current[again], rng)
        first, last = self.source_start[pair], self.source_start[pair + 1]
        before = self.source[first + (rng.random(len(pair)) * (last - first)).astype(np.int64)]
        relation = self.relation[pair]
        inner = self._fill(shape.branches[0], before, relation, rng)
        return np.concatenate([inner, relation[:, None]], axis=1)

    def _draw(self, current: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        first, last = self.start[current], self.start[current + 1]
        return first + (rng.random(len(current)) * (last - first)).astype(np.int64)


def sample_queries(
    data: QueryData,
    counts: Mapping[str, Mapping[str, int]],
    *,
    seed: int,
) -> QueryData:
    r"""Adds queries to a data set, drawn as the benchmark's are (BetaE's walk).

    An entity is drawn as an answer, and the structure is walked backwards from there: a relation
    among those that lead to the current entity, then one of its heads. The branches of an ``and``,
    ``or`` or ``not`` start from one entity. For a pair of consecutive relations :math:`r \ne r'`
    with :math:`\lfloor r/2 \rfloor = \lfloor r'/2 \rfloor` the relation is drawn again, up to 40
    times.

    Training queries are drawn from the training graph, and all their answers count as hard. Others
    are drawn from the full graph: easy answers follow from the observed one, hard ones do not.
    A query is rejected with two equal branches, without answer, without hard answer, with more than
    1000 hard ones; with negation also without any easy answer that is wrong on the full graph, or
    with more than 1000 of them. Queries of type 1p are not drawn but taken: one for every
    ``(head, relation)`` of the triples to predict, in both directions.

    Args:
        data (QueryData): The graphs; queries it has already are replaced, split by split.
        counts (mapping): For each split (``"train"``, ``"valid"``, ``"test"``) and type, how many
            queries are wanted; for ``"1p"`` the most that are kept.
        seed (int): The seed.

    Returns:
        QueryData: With queries, sorted and distinct, and answers. Where a graph has fewer queries
        than wanted there is a warning.
    """
    num_entities, num_relations = len(data.entities), len(data.relations)
    queries, answers = dict(data.queries), dict(data.answers)
    for number, split in enumerate(_SPLITS):
        if split not in counts:
            continue
        if split == "train":
            domain = torch.arange(data.num_entities[0])
            observed = full = asked = data.graphs["train_graph"]
        else:
            domain = data.candidates(split)
            observed, full = data.observed(split), data.full(split)
            asked = full[len(observed) :]
        executors = [
            GraphExecutor(part, num_entities, num_relations, domain) for part in (observed, full)
        ]
        walk = BackwardWalk(full.numpy(), num_entities, num_relations)
        found: dict[str, _Asked] = {}
        for place, (kind, wanted) in enumerate(counts[split].items()):
            rng = np.random.default_rng([seed, number, place])
            if kind == "1p":
                found[kind] = _accept(kind, _pairs(asked.numpy(), num_relations), executors, split)
                size = len(found[kind].rows)
                if size > wanted:
                    kept = np.sort(rng.choice(size, wanted, replace=False))
                    found[kind] = found[kind].select(kept)
                continue
            found[kind] = _draw(kind, wanted, walk, executors, split, rng)
            if len(found[kind].rows) < wanted:
                warnings.warn(
                    f"{data.name}: {len(found[kind].rows)} {split} queries of type {kind} were "
                    f"found, {wanted} were wanted",
                    stacklevel=2,
                )
        queries[split] = {kind: part.rows for kind, part in found.items()}
        answers[split] = {kind: (part.easy, part.hard) for kind, part in found.items()}
    return replace(data, queries=queries, answers=answers)


class _Asked(NamedTuple):
    """Queries of one type, as slots, with their answers."""

    rows: NDArray[np.int64]
    easy: AnswerSets
    hard: AnswerSets

    def select(self, index: NDArray[np.int64]) -> _Asked:
        return _Asked(self.rows[index], self.easy.select(index), self.hard.select(index))


def _draw(
    kind: str,
    wanted: int,
    walk: BackwardWalk,
    executors: list[GraphExecutor],
    split: str,
    rng: np.random.Generator,
) -> _Asked:
    shape = structure(kind)
    found: set[bytes] = set()
    parts: list[_Asked] = []
    idle = 0
    while len(found) < wanted and idle < _PATIENCE:
        size = min(8192, 4 * (wanted - len(found)) + 64)
        target = rng.choice(walk.entities, size)
        rows = walk.queries(shape, target, rng)
        rows = rows[~_equal_branches(shape, rows)]
        rows = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
        rows = rows[[row.tobytes() not in found for row in rows]]
        part = _accept(kind, rows, executors, split)
        idle = 0 if len(part.rows) else idle + 1
        parts.append(part.select(np.arange(min(len(part.rows), wanted - len(found)))))
        found |= {row.tobytes() for row in parts[-1].rows}
    rows = np.concatenate([part.rows for part in parts]).reshape(-1, shape.num_slots)
    easy, hard = (_concatenate(sets) for sets in zip(*(part[1:] for part in parts), strict=True))
    return _Asked(rows, easy, hard).select(np.lexsort(rows.T[::-1]))


def _accept(
    kind: str, rows: NDArray[np.int64], executors: list[GraphExecutor], split: str
) -> _Asked:
    """The queries that pass the rules on their answers."""
    batch = QueryBatch(structure(kind), torch.from_numpy(rows))
    observed, full = executors
    easy = observed.answers(batch)
    if split == "train":
        hard, easy = easy, AnswerSets.from_sets([()] * len(rows))
    else:
        every = full.answers(batch)
        hard = differences_of(every, easy)
    fine = (hard.sizes > 0) & (hard.sizes <= _MOST_ANSWERS)
    if split != "train" and batch.shape.has("not"):
        wrong = differences_of(easy, every).sizes
        fine &= (wrong > 0) & (wrong <= _MOST_ANSWERS)
    return _Asked(rows, easy, hard).select(np.flatnonzero(fine))


def _pairs(triples: NDArray[np.int64], num_relations: int) -> NDArray[np.int64]:
    """The distinct pairs of entity and relation of triples, in both directions."""
    forward = triples[:, :2]
    backward = np.stack([triples[:, 2], triples[:, 1] + num_relations], axis=1)
    return np.unique(np.concatenate([forward, backward]), axis=0)


def _equal_branches(shape: QueryShape, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a node has two equal branches of one structure."""
    found = np.zeros(len(rows), dtype=bool)
    parts = list(zip(shape.branches, shape.branch_slots, strict=True))
    for branch, slots in parts:
        found |= _equal_branches(branch, rows[:, slots])
    for (one, first), (other, second) in combinations(parts, 2):
        if _positive(one) == _positive(other):
            found |= (rows[:, first] == rows[:, second]).all(1)
    return found


def _positive(shape: QueryShape) -> QueryShape:
    return shape.branches[0] if shape.operator == "not" else shape


def _concatenate(parts: Sequence[AnswerSets]) -> AnswerSets:
    sizes = np.concatenate([part.sizes for part in parts])
    return AnswerSets.from_sizes(sizes, np.concatenate([part.values for part in parts]))


def _group_triples(
    outer: NDArray[np.int64], inner: NDArray[np.int64], value: NDArray[np.int64], num_outer: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each outer id its inner ids, ascending, and for each of those its values, ascending.

    Returns where the inner ids start, the inner ids, where the values start, and the values.
    """
    order = np.lexsort((value, inner, outer))
    outer, inner, value = outer[order], inner[order], value[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (outer[1:] != outer[:-1]) | (inner[1:] != inner[:-1])
    first = np.flatnonzero(new)
    start = np.searchsorted(outer[first], np.arange(num_outer + 1))
    return start, inner[first], np.append(first, len(value)), value
