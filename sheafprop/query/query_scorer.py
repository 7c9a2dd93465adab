from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

from sheafprop.query.query_batch import QueryBatch


class QueryScorer(Protocol):
    """What can be evaluated: :class:`QueryAnswering` and :class:`QueryEdgeHeuristic`."""

    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """Yields positions of queries, and their scores ``[rows, C]``.

        Args:
            batch (QueryBatch): The queries.
            candidates (Tensor, optional): Ids of the entities to score, ``[C]``, instead of all.
            batch_size (int, optional): Queries treated at once. (default: what memory allows)
        """
