"""A knowledge graph as a PyG data object."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from sheafprop.data.triples import as_label_triples
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError, UnknownRelationError


class KnowledgeGraph(Data):
    r"""A knowledge graph: a :class:`torch_geometric.data.Data` whose edges have relation types.

    Duplicate triples, parallel edges and loops are kept.

    Args:
        edge_index: Heads (row 0) and tails (row 1), int64 of shape ``[2, num_edges]``.
        edge_type: The relation of every edge, int64 of shape ``[num_edges]``.
        num_nodes: The number of entities.
        num_relations: The number of relations, including those without edges.
        entities: The labels of the entities.
        relations: The labels of the relations.
        **kwargs: Further attributes, as for :class:`~torch_geometric.data.Data`.
    """

    def __init__(
        self,
        edge_index: Tensor | None = None,
        edge_type: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        num_relations: int | None = None,
        entities: Vocabulary | None = None,
        relations: Vocabulary | None = None,
        **kwargs: Any,
    ) -> None:
        given = {
            "edge_type": edge_type,
            "num_nodes": num_nodes,
            "num_relations": num_relations,
            "entities": entities,
            "relations": relations,
        }
        kwargs.update({key: value for key, value in given.items() if value is not None})
        super().__init__(edge_index=edge_index, **kwargs)

    @classmethod
    def from_triples(
        cls,
        triples: Tensor,
        *,
        num_nodes: int | None = None,
        num_relations: int | None = None,
        entities: Vocabulary | None = None,
        relations: Vocabulary | None = None,
    ) -> "KnowledgeGraph":
        r"""Builds a graph from id triples ``(head, relation, tail)`` of shape ``[num_edges, 3]``.

        ``num_nodes`` and ``num_relations`` default to the numbers of labels, or to the largest ids
        plus one.

        Raises:
            DataError: If an id is out of range.
        """
        if triples.dim() != 2 or triples.size(1) != 3:
            raise DataError(f"'triples' must have shape [num_edges, 3] (got {list(triples.shape)})")
        if num_nodes is None:
            largest = int(triples[:, [0, 2]].max()) if len(triples) else -1
            num_nodes = largest + 1 if entities is None else len(entities)
        if num_relations is None:
            largest = int(triples[:, 1].max()) if len(triples) else -1
            num_relations = largest + 1 if relations is None else len(relations)
        graph = cls(
            edge_index=triples[:, [0, 2]].t().contiguous(),
            edge_type=triples[:, 1].contiguous(),
            num_nodes=num_nodes,
            num_relations=num_relations,
            entities=entities,
            relations=relations,
        )
        graph.validate_ids()
        return graph

    @classmethod
    def from_labels(
        cls,
        triples: Iterable[Sequence[str]],
        *,
        entities: Vocabulary | None = None,
        relations: Vocabulary | None = None,
    ) -> "KnowledgeGraph":
        r"""Builds a graph from label triples. Ids follow the first appearance, head before tail.

        Args:
            triples: Rows ``(head, relation, tail)`` of strings or integers, or a data frame of
                pandas or polars. Integers are converted to text; vocabularies accept both.
            entities: A fixed vocabulary. Labels that no triple uses cause a warning.
            relations: A fixed vocabulary.

        Raises:
            DataError: If an entity is not in the given vocabulary.
            UnknownRelationError: If a relation is not in the given vocabulary.
        """
        array = as_label_triples(triples)
        ends = array[:, [0, 2]].ravel()
        if entities is None:
            entities = Vocabulary(kind="entities").extend(ends)
        if relations is None:
            relations = Vocabulary(kind="relations").extend(array[:, 1])
        edge_index = entities.ids(ends).view(-1, 2).t().contiguous()
        try:
            edge_type = relations.ids(array[:, 1])
        except DataError as error:
            raise UnknownRelationError(str(error)) from error
        unused = len(entities) - len(edge_index.unique())
        if unused:
            warnings.warn(f"{unused} of the {len(entities)} entities occur in no triple")
        return cls(
            edge_index=edge_index,
            edge_type=edge_type,
            num_nodes=len(entities),
            num_relations=len(relations),
            entities=entities,
            relations=relations,
        )

    # PyG drops attributes that are None, so optional ones are read through a property.
    @property
    def edge_type(self) -> Tensor | None:
        r"""The relation of every edge, of shape ``[num_edges]``."""
        return self._store.get("edge_type")

    @property
    def num_relations(self) -> int | None:
        r"""The number of relations."""
        return self._store.get("num_relations")

    @property
    def entities(self) -> Vocabulary | None:
        r"""The labels of the entities."""
        return self._store.get("entities")

    @property
    def relations(self) -> Vocabulary | None:
        r"""The labels of the relations."""
        return self._store.get("relations")

    @property
    def triples(self) -> Tensor:
        r"""The edges as triples ``(head, relation, tail)``, of shape ``[num_edges, 3]``.

        Raises:
            DataError: If the graph has no edges or no relations.
        """
        if self.edge_index is None or self.edge_type is None:
            raise DataError("The graph has no triples: 'edge_index' or 'edge_type' is missing")
        return torch.stack([self.edge_index[0], self.edge_type, self.edge_index[1]], dim=1)

    def validate_ids(self) -> None:
        r"""Checks shapes, types and ranges of all ids, and the lengths of masks and labels.

        Raises:
            DataError: If a check fails. The message states the requirement and the value.
        """
        num_nodes, num_relations = self.num_nodes, self.num_relations
        index, kind = self.edge_index, self.edge_type
        if index is None or index.dim() != 2 or index.size(0) != 2:
            shape = None if index is None else list(index.shape)
            hint = " (Transpose it.)" if shape and len(shape) == 2 and shape[1] == 2 else ""
            raise DataError(f"'edge_index' must have shape [2, num_edges] (got {shape}){hint}")
        if kind is None or kind.shape != index.shape[1:]:
            shape = None if kind is None else list(kind.shape)
            raise DataError(
                f"'edge_type' must have one entry for each of the {index.size(1)} edges "
                f"(got shape {shape})"
            )
        self._check_range("edge_index", index, num_nodes, "entities")
        self._check_range("edge_type", kind, num_relations, "relations")
        lengths = {"entities": num_nodes, "relations": num_relations, "boundary_mask": num_nodes}
        for key, expected in lengths.items():
            value = self._store.get(key)
            if value is not None and len(value) != expected:
                raise DataError(f"'{key}' must have {expected} entries (got {len(value)})")

    @staticmethod
    def _check_range(key: str, ids: Tensor, limit: int | None, kind: str) -> None:
        if ids.dtype != torch.int64:
            raise DataError(f"'{key}' must have dtype torch.int64 (got {ids.dtype})")
        if limit is None:
            raise DataError(f"The number of {kind} is missing")
        wrong = ids[(ids < 0) | (ids >= limit)]
        if wrong.numel():
            raise DataError(
                f"'{key}' must hold ids from 0 to {limit - 1}, for {limit} {kind} "
                f"(got {int(wrong[0])}; {wrong.numel()} ids out of range)"
            )
