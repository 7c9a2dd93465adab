import functools
import operator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.query.query import QueryShape
from sheafprop.query.query_batch import QueryBatch
from sheafprop.ranking.triple_filter import GroupedValues, check_ids, check_triples

# Members of sets that are held at once where a set may hold every entity (16 MiB of booleans).
_MEMBERS = 2**24


class GraphExecutor:
    r"""Answers logical queries exactly, as sets, from the triples of a graph.

    All structures are supported, including unions and negation: :obj:`not` is the complement in the
    domain. The id :math:`r + R` denotes the inverse of relation :math:`r`.

    Args:
        triples (Tensor): The triples ``(head, relation, tail)``, ``[m, 3]``; repeated ones count
            once.
        num_entities (int): The number of entities :math:`N`.
        num_relations (int): The number of relations :math:`R`, without inverse ones.
        domain (Tensor, optional): The entities of the graph, in which complements are taken.
            (default: all)

    Raises:
        ValueError: If an id is out of range.
    """

    def __init__(
        self, triples: Tensor, num_entities: int, num_relations: int, domain: Tensor | None = None
    ) -> None:
        array = np.asarray(triples, dtype=np.int64).reshape(-1, 3)
        check_triples(torch.from_numpy(array), num_entities, num_relations)
        self.num_entities, self.num_relations = num_entities, num_relations
        everyone = np.arange(num_entities) if domain is None else np.unique(np.asarray(domain))
        check_ids(torch.from_numpy(everyone.astype(np.int64)), num_entities, "domain")
        self.domain = everyone.astype(np.int32)
        head, relation, tail = torch.from_numpy(array).unbind(1)
        leaves = torch.cat([relation, relation + num_relations])
        # Pairs of a relation and a source, ascending, and where each leads to.
        known = GroupedValues(
            leaves * num_entities + torch.cat([head, tail]), torch.cat([tail, head])
        )
        self._pairs = known.keys.numpy()
        self._targets = _sets(known.start.numpy(), known.values.numpy(), num_entities)

    def answers(self, batch: QueryBatch) -> AnswerSets:
        """Returns the answers to every query of a batch."""
        batch.check_ids(self.num_entities, self.num_relations)
        slots = batch.slots.cpu().numpy()
        step = max(1, _MEMBERS // max(1, self.num_entities))
        found = [
            self._answer(batch.shape, slots[first : first + step])
            for first in range(0, len(slots), step)
        ]
        if not found:
            return AnswerSets.from_sets([])
        for part in found:
            part.sort_indices()
        sizes = np.concatenate([np.diff(part.indptr) for part in found])
        values = np.concatenate([part.indices for part in found])
        return AnswerSets.from_sizes(sizes.astype(np.int64), values.astype(np.int32))

    def _answer(self, shape: QueryShape, slots: NDArray[np.int64]) -> csr_array:
        """The answers to queries as the rows of a Boolean matrix."""
        count, size = len(slots), self.num_entities
        if shape.operator == "anchor":
            return _sets(np.arange(count + 1), slots[:, 0], size)
        inner, excluded = [], []
        for branch, own in zip(shape.branches, shape.branch_slots, strict=True):
            if branch.operator == "not" and shape.operator == "and":
                excluded.append(self._answer(branch.branches[0], slots[:, own]))
            else:
                inner.append(self._answer(branch, slots[:, own]))
        if shape.operator == "or":
            return functools.reduce(operator.add, inner)
        if shape.operator == "via":
            row = np.repeat(np.arange(count), np.diff(inner[0].indptr))
            return self._walk(row, slots[row, -1], inner[0].indices, count)
        if shape.operator == "not":
            excluded, inner = inner, []
        if not inner:
            everyone = np.tile(self.domain, count)
            inner = [_sets(np.arange(count + 1) * len(self.domain), everyone, size)]
        found = functools.reduce(lambda a, b: a.multiply(b), inner)
        if excluded:
            found = found.multiply(np.isin(np.arange(size), self.domain)).tocsr()
        # One Boolean is greater than another where it alone holds.
        return functools.reduce(operator.gt, excluded, found)

    def _walk(
        self, row: NDArray, relation: NDArray[np.int64], source: NDArray, count: int
    ) -> csr_array:
        """Where relations lead to from sources, as sets for ``count`` ascending rows."""
        wanted = relation * self.num_entities + source
        place = np.searchsorted(self._pairs, wanted)
        known = place < len(self._pairs)
        known[known] = self._pairs[place[known]] == wanted[known]
        start = np.searchsorted(row[known], np.arange(count + 1))
        return _sets(start, place[known], len(self._pairs)) @ self._targets

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({self._targets.nnz // 2} triples, "
            f"num_entities={self.num_entities}, num_relations={self.num_relations})"
        )


def easy_and_hard(
    observed: GraphExecutor, full: GraphExecutor, batch: QueryBatch
) -> tuple[AnswerSets, AnswerSets]:
    """Returns the answers to the queries of a ``batch`` on the ``observed`` graph (easy), and those
    that require the ``full`` graph (hard)."""
    easy = observed.answers(batch)
    return easy, differences_of(full.answers(batch), easy)


def differences_of(sets: AnswerSets, others: AnswerSets) -> AnswerSets:
    """What each of the sets has and its counterpart has not."""
    width = 1 + max(
        (int(part.values.max()) for part in (sets, others) if part.values.size), default=0
    )
    gap = _sets(sets.start, sets.values, width) > _sets(others.start, others.values, width)
    gap.sort_indices()
    return AnswerSets.from_sizes(np.diff(gap.indptr).astype(np.int64), gap.indices.astype(np.int32))


def _sets(start: NDArray, members: NDArray, size: int) -> csr_array:
    """Sets of numbers below ``size`` as the rows of a Boolean matrix."""
    return csr_array((np.ones(len(members), dtype=bool), members, start), (len(start) - 1, size))
