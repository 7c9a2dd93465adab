from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_shape import QueryShape
from sheafprop.ranking import EdgeTypeHeuristic

_BLOCK_SCORES = 2**23


class EdgeTypeScorer(EdgeTypeHeuristic):
    r"""The edge-type heuristic for queries: entities seen at the end of the last relation score 1.

    Where branches meet, a candidate must have been seen at the end of all of them, or of any for
    unions; negated branches are ignored. Entities and relations before the last ones play no part:
    what a model gains over it goes beyond knowing types. From Galkin et al., "Inductive Logical
    Query Answering in Knowledge Graphs" (2022).

    Args:
        triples (Tensor): The observed triples, ``[m, 3]``.
        num_nodes (int): The number of entities.
        num_relations (int): The number of relations :math:`R`; from :math:`R` on, ids stand for
            inverse ones.
    """

    def score(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Tensor:
        """Scores 0 or 1 of all queries, ``[Q, C]``.

        Args:
            batch, candidates, batch_size: As in :meth:`blocks`.
        """
        blocks = self.blocks(batch, candidates, batch_size=batch_size)
        return torch.cat([scores for _, scores in blocks])

    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields positions of queries, and their scores 0 or 1, ``[rows, C]``.

        Args:
            batch (QueryBatch): The queries.
            candidates (Tensor, optional): Ids of the entities to score, ``[C]``, instead of all.
            batch_size (int, optional): Queries treated at once. (default: what memory allows)
        """
        batch.check_ids(self.num_nodes, self.num_relations)
        everyone = torch.arange(self.num_nodes) if candidates is None else candidates
        size = batch_size or max(1, _BLOCK_SCORES // max(1, everyone.numel()))
        for rows in torch.arange(len(batch)).split(size):
            yield rows, self._match(batch.shape, batch.slots[rows], everyone).float()

    def _match(self, shape: QueryShape, slots: Tensor, candidates: Tensor) -> Tensor:
        if shape.operator == "anchor":
            return candidates == slots
        if shape.operator == "not":
            return torch.ones(len(slots), candidates.numel(), dtype=torch.bool)
        if shape.operator == "via":
            relations, index = torch.unique(slots[:, -1], return_inverse=True)
            return self.seen(relations)[:, candidates][index]
        parts = torch.stack(
            [
                self._match(branch, slots[:, own], candidates)
                for branch, own in zip(shape.branches, shape.branch_slots, strict=True)
            ]
        )
        return parts.all(0) if shape.operator == "and" else parts.any(0)
