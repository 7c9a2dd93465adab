from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_shape import QueryShape

_BLOCK_SCORES = 2**23


class QueryEdgeHeuristic:
    r"""The edge-type heuristic for queries: entities seen at the end of the last relation score 1.

    Where branches meet, a candidate must have been seen at the end of all of them, or of any for
    unions; negated branches are ignored. Entities and relations before the last ones play no part:
    what a model gains over it goes beyond knowing types. From Galkin et al., "Inductive Logical
    Query Answering in Knowledge Graphs" (2022).

    Args:
        triples (Tensor): The observed triples, ``[m, 3]``.
        num_entities (int): The number of entities.
        num_relations (int): The number of relations :math:`R`; from :math:`R` on, ids stand for
            inverse ones.
    """

    def __init__(self, triples: Tensor, num_entities: int, num_relations: int) -> None:
        self.num_entities, self.num_relations = num_entities, num_relations
        relation = torch.cat([triples[:, 1], triples[:, 1] + num_relations])
        end = torch.cat([triples[:, 2], triples[:, 0]])
        pairs = torch.unique(relation * num_entities + end)
        self._end = pairs % num_entities
        self._start = torch.searchsorted(pairs, torch.arange(2 * num_relations + 1) * num_entities)

    def score(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Tensor:
        """Scores 0 or 1, ``[Q, C]``; see :meth:`QueryAnswering.score
        <sheafprop.query.QueryAnswering.score>` for ``batch``, ``candidates`` and ``batch_size``."""
        count = self.num_entities if candidates is None else candidates.numel()
        out = torch.empty(len(batch), count)
        for rows, scores in self.blocks(batch, candidates, batch_size=batch_size):
            out[rows] = scores
        return out

    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields positions of queries and their scores; takes what :meth:`score` takes."""
        batch.check_ids(self.num_entities, self.num_relations)
        everyone = torch.arange(self.num_entities) if candidates is None else candidates
        size = batch_size or max(1, _BLOCK_SCORES // max(1, everyone.numel()))
        for rows in torch.arange(len(batch)).split(size):
            slots = batch.slots[rows]
            yield rows, self._seen(batch.shape, slots, everyone).float()

    def _seen(self, shape: QueryShape, slots: Tensor, candidates: Tensor) -> Tensor:
        if shape.operator == "anchor":
            return candidates == slots
        if shape.operator == "not":
            return torch.ones(len(slots), candidates.numel(), dtype=torch.bool)
        if shape.operator == "via":
            relations, index = torch.unique(slots[:, -1], return_inverse=True)
            table = torch.zeros(relations.numel(), self.num_entities, dtype=torch.bool)
            for row, relation in enumerate(relations.tolist()):
                table[row, self._end[self._start[relation] : self._start[relation + 1]]] = True
            return table[:, candidates][index]
        parts = [
            self._seen(branch, slots[:, own], candidates)
            for branch, own in zip(shape.branches, shape.branch_slots, strict=True)
        ]
        stacked = torch.stack(parts)
        return stacked.all(0) if shape.operator == "and" else stacked.any(0)

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}(num_entities={self.num_entities}, "
            f"num_relations={self.num_relations})"
        )
