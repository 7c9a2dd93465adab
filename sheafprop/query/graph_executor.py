from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.kernels.threads import num_threads, run_chunks
from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_shape import QueryShape
from sheafprop.ranking.triple_filter import check_ids, check_triples

_OPERATORS = {"anchor": 0, "via": 1, "and": 2, "or": 3, "not": 4}


class GraphExecutor:
    r"""Answers logical queries exactly, as sets, from the triples of a graph alone.

    All structures can be answered, with unions and negation: :obj:`not` is the complement in the
    domain. The id :math:`r + R` stands for relation :math:`r` walked from tail to head.

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
        head, relation, tail = array.T
        start, heads, tail_start, tails = group_triples(
            np.concatenate([relation, relation + num_relations]),
            np.concatenate([head, tail]),
            np.concatenate([tail, head]),
            2 * num_relations,
            unique=True,
        )
        self._index = start, heads.astype(np.int32), tail_start, tails.astype(np.int32)

    def answers(self, batch: QueryBatch) -> AnswerSets:
        """The answers to every query of a batch."""
        from sheafprop.query.loops import answer_rows

        batch.check_ids(self.num_entities, self.num_relations)
        slots = batch.slots.cpu().numpy()
        program, depth = _program(batch.shape)
        bounds = np.linspace(0, len(slots), min(len(slots), 8 * num_threads()) + 1).astype(np.int64)
        parts: list[Any] = [None] * (len(bounds) - 1)

        def run(i: int) -> None:
            # Any number of threads gives the same sets, in the order of the pieces.
            rows = (int(bounds[i]), int(bounds[i + 1]))
            parts[i] = answer_rows(
                program, depth, slots, self._index, self.domain, self.num_entities, *rows
            )

        run_chunks(run, range(len(parts)))
        if not parts:
            return AnswerSets.from_sets([])
        sizes, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        return AnswerSets.from_sizes(sizes, values)

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({self._index[3].size // 2} triples, "
            f"num_entities={self.num_entities}, num_relations={self.num_relations})"
        )


def easy_and_hard(
    observed: GraphExecutor, full: GraphExecutor, batch: QueryBatch
) -> tuple[AnswerSets, AnswerSets]:
    """Answers to the queries of a ``batch`` on the ``observed`` graph (easy), and those that only
    the ``full`` graph gives (hard)."""
    easy = observed.answers(batch)
    return easy, differences_of(full.answers(batch), easy)


def differences_of(sets: AnswerSets, others: AnswerSets) -> AnswerSets:
    """What each of the sets has and its counterpart has not."""
    from sheafprop.query.loops import differences

    sizes, values = differences(sets.start, sets.values, others.start, others.values)
    return AnswerSets.from_sizes(sizes, values)


def group_triples(
    outer: NDArray[np.int64],
    inner: NDArray[np.int64],
    value: NDArray[np.int64],
    num_outer: int,
    *,
    unique: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each outer id its inner ids, ascending, and for each of those its values, ascending.

    Returns where the inner ids start, the inner ids, where the values start, and the values;
    repeated triples count once where ``unique``.
    """
    order = np.lexsort((value, inner, outer))
    outer, inner, value = outer[order], inner[order], value[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (outer[1:] != outer[:-1]) | (inner[1:] != inner[:-1])
    if unique:
        kept = new.copy()
        kept[1:] |= value[1:] != value[:-1]
        outer, inner, value, new = (column[kept] for column in (outer, inner, value, new))
    first = np.flatnonzero(new)
    start = np.searchsorted(outer[first], np.arange(num_outer + 1))
    return start, inner[first], np.append(first, len(value)), value


def _program(shape: QueryShape) -> tuple[NDArray[np.int64], int]:
    """The operators in postorder, with two operands each, and the sets that wait at most."""
    program: list[int] = []
    depth = most = 0

    def visit(node: QueryShape) -> None:
        nonlocal depth, most
        for number, branch in enumerate(node.branches):
            visit(branch)
            if node.operator in ("and", "or") and number:
                program.append(_OPERATORS[node.operator])
                depth -= 1
        if node.operator not in ("and", "or"):
            program.append(_OPERATORS[node.operator])
            depth += node.operator == "anchor"
            most = max(most, depth)

    visit(shape)
    return np.array(program), most
