from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.data.vocabulary import Labels
from sheafprop.query.query_shape import Operator, QueryShape, structure

_BARE = re.compile(r"""[^\s(),;"'][^\s(),;]*""")


@dataclass(frozen=True)
class Query:
    r"""A logical query over labels.

    Queries are built from entities, in Python or as text (see :func:`parse_query`):

    .. code-block:: python

        Query.entity("a").via("r1").via("r2")                   # via(r2, via(r1, a))
        Query.entity("a").via("r1") & Query.entity("b").via("r2", inverse=True)
        Query.entity("a").via("r1") & ~Query.entity("b").via("r2")
        Query.of("pi", relations=["r1", "r2", "r3"], anchors=["a", "b"])

    :obj:`str(query)` is text that parses to the same query.

    Args:
        shape (QueryShape): The tree of operators.
        labels (tuple of str): The labels in its slots.
        inverse (tuple of bool): For each slot, whether its relation is followed from tail to head.

    Raises:
        ValueError: If the slots do not match.
    """

    shape: QueryShape
    labels: tuple[str, ...]
    inverse: tuple[bool, ...]

    def __post_init__(self) -> None:
        wanted = self.shape.num_slots
        if not len(self.labels) == len(self.inverse) == wanted:
            raise ValueError(
                f"the shape has {wanted} slots (got {len(self.labels)} labels and "
                f"{len(self.inverse)} directions)"
            )
        wrong = [self.labels[i] for i in self.shape.entity_slots if self.inverse[i]]
        if wrong:
            raise ValueError(f"only relations have an inverse (got the entity {wrong[0]!r})")

    @classmethod
    def entity(cls, label: str) -> Query:
        """Returns the query for the entity ``label`` itself, the start of other queries."""
        return cls(QueryShape("anchor"), (label,), (False,))

    @classmethod
    def of(
        cls,
        name: str,
        relations: Sequence[str | tuple[str, bool]],
        anchors: Sequence[str],
    ) -> Query:
        r"""Builds a query of a named structure, such as ``"2p"`` or ``"ip"``.

        Args:
            name: The structure.
            relations: Its relations, in the order in which they are followed, branch by branch. A
                pair ``(label, True)`` follows the relation from tail to head.
            anchors: Its entities, from left to right.

        Raises:
            ValueError: If the structure is unknown or the numbers do not match.
        """
        shape = structure(name)
        counts = len(shape.relation_slots), len(shape.entity_slots)
        if (len(relations), len(anchors)) != counts:
            raise ValueError(
                f"'{name}' takes {counts[0]} relations and {counts[1]} entities "
                f"(got {len(relations)} and {len(anchors)})"
            )
        labels, inverse = [""] * shape.num_slots, [False] * shape.num_slots
        for slot, label in zip(shape.entity_slots, anchors, strict=True):
            labels[slot] = label
        for slot, relation in zip(shape.relation_slots, relations, strict=True):
            pair = (relation, False) if isinstance(relation, str) else relation
            labels[slot], inverse[slot] = pair
        return cls(shape, tuple(labels), tuple(inverse))

    def via(self, relation: str, *, inverse: bool = False) -> Query:
        """Returns the query for all entities that a relation leads to; with ``inverse``, for all
        from which it leads here."""
        return Query(
            QueryShape("via", (self.shape,)), (*self.labels, relation), (*self.inverse, inverse)
        )

    def __and__(self, other: Query) -> Query:
        return combine("and", [self, other])

    def __or__(self, other: Query) -> Query:
        return combine("or", [self, other])

    def __invert__(self) -> Query:
        return Query(QueryShape("not", (self.shape,)), self.labels, self.inverse)

    def ids(self, entities: Labels, relations: Labels) -> Tensor:
        r"""Returns the ids in the slots, int64; an inverse relation has its id plus the number of
        relations.

        Raises:
            DataError: If a label is unknown; the message suggests similar labels.
        """
        out = torch.empty(len(self.labels), dtype=torch.long)
        for slots, vocabulary in (
            (self.shape.entity_slots, entities),
            (self.shape.relation_slots, relations),
        ):
            out[list(slots)] = vocabulary.ids([self.labels[i] for i in slots])
        return out + len(relations) * torch.tensor(self.inverse)

    def __str__(self) -> str:
        return self.shape.text(
            [
                f"inverse({quote(label)})" if inverse else quote(label)
                for label, inverse in zip(self.labels, self.inverse, strict=True)
            ]
        )


def combine(operator: Operator, queries: Sequence[Query]) -> Query:
    """Joins queries by ``and`` or ``or``; operands that are joined so themselves are merged."""
    branches: list[QueryShape] = []
    for query in queries:
        same = query.shape.operator == operator
        branches += query.shape.branches if same else [query.shape]
    return Query(
        QueryShape(operator, tuple(branches)),
        tuple(label for query in queries for label in query.labels),
        tuple(flag for query in queries for flag in query.inverse),
    )


def quote(label: str) -> str:
    """The label as it stands in the text of a query."""
    if _BARE.fullmatch(label):
        return label
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"') + '"'
