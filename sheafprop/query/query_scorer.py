from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sheafprop.data.vocabulary import Labels
from sheafprop.query.query import Query
from sheafprop.query.query_batch import QueryBatch
from sheafprop.ranking.triple_filter import check_ids

AnyQuery = Query | str


class QueryScorer(ABC):
    r"""Scores every entity as the answer to logical queries, one block of queries at a time.

    Args:
        num_entities (int): The number of entities.
        num_relations (int): The number of relations, without inverse ones.
        entities (Labels, optional): The labels of the entities; required for queries over labels.
        relations (Labels, optional): The labels of the relations; required for queries over labels.

    Raises:
        ValueError: If the numbers of labels do not match.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        entities: Labels | None = None,
        relations: Labels | None = None,
    ) -> None:
        for name, labels, count in (
            ("entities", entities, num_entities),
            ("relations", relations, num_relations),
        ):
            if labels is not None and len(labels) != count:
                raise ValueError(f"'{name}' must hold {count} labels (got {len(labels)})")
        self.num_entities, self.num_relations = num_entities, num_relations
        self.entities, self.relations = entities, relations

    @abstractmethod
    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields positions of queries and their scores ``[rows, C]``.

        Args:
            batch (QueryBatch): The queries.
            candidates (Tensor, optional): Ids of the entities to score, ``[C]``, instead of all.
            batch_size (int, optional): Queries per block. (default: by the available memory)

        Raises:
            ValueError: If ``batch_size`` is not positive.
        """

    @torch.no_grad()
    def score(
        self,
        queries: QueryBatch | Sequence[AnyQuery],
        candidates: Tensor | None = None,
        *,
        batch_size: int | None = None,
    ) -> Tensor:
        r"""Scores all entities as answers, ``[Q, C]``; higher is better.

        Args:
            queries (QueryBatch or sequence of Query or str): The queries.
            candidates, batch_size: See :meth:`blocks`. The batch size changes scores only by
                rounding.

        Raises:
            DataError: If a text is not a query or a label is unknown.
            ValueError: If an id is out of range, or the queries are not supported.
        """
        if candidates is not None:
            check_ids(candidates, self.num_entities, "candidate")
        out = torch.empty(0, self.num_entities if candidates is None else candidates.numel())
        for batch, positions in self.group(queries):
            for rows, block in self.blocks(batch, candidates, batch_size=batch_size):
                out = out if len(out) else block.new_empty(len(queries), block.shape[1])
                out[positions[rows.cpu()].to(out.device)] = block
        return out

    def group(self, queries: QueryBatch | Sequence[AnyQuery]) -> list[tuple[QueryBatch, Tensor]]:
        """Groups queries into batches of one shape each, with their positions.

        Args:
            queries (QueryBatch or sequence of Query or str): A batch, which is returned unchanged,
                or queries over labels.

        Raises:
            ValueError: If queries over labels are given to a scorer without labels.
        """
        if isinstance(queries, QueryBatch):
            return [(queries, torch.arange(len(queries)))]
        if self.entities is None or self.relations is None:
            raise ValueError("queries over labels need 'entities' and 'relations' (got none)")
        return QueryBatch.from_queries(queries, self.entities, self.relations)

    def label(self, entity: int) -> str:
        """Returns the label of an ``entity``, or its id as text without labels."""
        return str(entity) if self.entities is None else self.entities.labels_of([entity])[0]
