from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from sheafprop.data.vocabulary import Labels

Operator = Literal["anchor", "via", "and", "or", "not"]

# More conjunctions than this come from a query that nobody means.
_MOST_CONJUNCTIONS = 1024


@dataclass(frozen=True)
class QueryShape:
    r"""The structure of queries without their entities and relations: a tree of operators.

    A query of this shape fills :attr:`num_slots` slots with an entity for each ``"anchor"`` and a
    relation for each ``"via"``, in postorder: the branches of an operator, from left to right, then
    the operator itself. ``ip``, for example, has the slots entity, relation, entity, relation,
    relation.

    Args:
        operator: ``"anchor"`` (a given entity), ``"via"`` (all entities that a relation leads to
            from its branch), ``"and"``, ``"or"`` or ``"not"``.
        branches: The operands: none, one, at least two, at least two, and one.

    Raises:
        ValueError: If the number of branches does not match the operator.
    """

    operator: Operator
    branches: tuple[QueryShape, ...] = ()

    def __post_init__(self) -> None:
        wanted = {"anchor": (0, 0), "via": (1, 1), "not": (1, 1), "and": (2, None), "or": (2, None)}
        if self.operator not in wanted:
            raise ValueError(
                f"'operator' must be one of {', '.join(wanted)} (got {self.operator!r})"
            )
        least, most = wanted[self.operator]
        if len(self.branches) < least or (most is not None and len(self.branches) > most):
            count = "at least two" if most is None else str(least)
            raise ValueError(f"'{self.operator}' takes {count} branches (got {len(self.branches)})")

    @cached_property
    def slot_kinds(self) -> tuple[Literal["entity", "relation"], ...]:
        """The kind of each slot."""
        inner = tuple(kind for branch in self.branches for kind in branch.slot_kinds)
        if self.operator == "anchor":
            return ("entity",)
        return (*inner, "relation") if self.operator == "via" else inner

    @property
    def num_slots(self) -> int:
        """Total number of entities and relations."""
        return len(self.slot_kinds)

    @cached_property
    def entity_slots(self) -> tuple[int, ...]:
        """Positions of the entities."""
        return tuple(i for i, kind in enumerate(self.slot_kinds) if kind == "entity")

    @cached_property
    def relation_slots(self) -> tuple[int, ...]:
        """Positions of the relations."""
        return tuple(i for i, kind in enumerate(self.slot_kinds) if kind == "relation")

    @cached_property
    def branch_slots(self) -> tuple[slice, ...]:
        """The slots of each branch."""
        slices, start = [], 0
        for branch in self.branches:
            slices.append(slice(start, start + branch.num_slots))
            start += branch.num_slots
        return tuple(slices)

    def walk(self) -> Iterator[QueryShape]:
        """Yields all subtrees in postorder."""
        for branch in self.branches:
            yield from branch.walk()
        yield self

    def has(self, operator: Operator) -> bool:
        """Returns whether the operator occurs."""
        return any(node.operator == operator for node in self.walk())

    def text(self, labels: list[str]) -> str:
        """Returns the query with these labels in its slots, in the notation of the parser."""
        if self.operator == "anchor":
            return labels[0]
        parts = [
            branch.text(labels[slots])
            for branch, slots in zip(self.branches, self.branch_slots, strict=True)
        ]
        if self.operator == "via":
            parts.insert(0, labels[-1])
        return f"{self.operator}({', '.join(parts)})"

    def conjunctions(self) -> list[tuple[QueryShape, tuple[int, ...]]]:
        r"""Returns the disjunctive normal form: conjunctive shapes whose combined answers are those
        of the query.

        Nested ``and`` are merged.

        Returns:
            Each shape with the slots of this shape that fill its slots.

        Raises:
            ValueError: If there is a negation, or there are more than 1024 conjunctions.
        """
        return self._conjunctions(tuple(range(self.num_slots)))

    def _conjunctions(self, own: tuple[int, ...]) -> list[tuple[QueryShape, tuple[int, ...]]]:
        if self.operator == "not":
            raise ValueError(
                "negation has no energy to minimize: leave out interior='free' (--interior free), "
                "or answer on the graph alone (GraphExecutor)"
            )
        if self.operator == "anchor":
            return [(self, own)]
        parts = [
            branch._conjunctions(own[slots])
            for branch, slots in zip(self.branches, self.branch_slots, strict=True)
        ]
        if self.operator == "via":
            return [(QueryShape("via", (shape,)), (*slots, own[-1])) for shape, slots in parts[0]]
        joins = self.operator == "and"
        count = math.prod(map(len, parts)) if joins else sum(map(len, parts))
        if count > _MOST_CONJUNCTIONS:
            raise ValueError(
                f"the query stands for {count} conjunctions; at most {_MOST_CONJUNCTIONS} are "
                "evaluated. Split it into several queries"
            )
        return [_join(terms) for terms in product(*parts)] if joins else list(chain(*parts))


def _join(
    terms: tuple[tuple[QueryShape, tuple[int, ...]], ...],
) -> tuple[QueryShape, tuple[int, ...]]:
    branches: list[QueryShape] = []
    for shape, _ in terms:
        branches += shape.branches if shape.operator == "and" else [shape]
    return QueryShape("and", tuple(branches)), tuple(i for _, slots in terms for i in slots)


_A = QueryShape("anchor")


def _via(shape: QueryShape, hops: int = 1) -> QueryShape:
    for _ in range(hops):
        shape = QueryShape("via", (shape,))
    return shape


def _and(*branches: QueryShape) -> QueryShape:
    return QueryShape("and", branches)


def _not(shape: QueryShape) -> QueryShape:
    return QueryShape("not", (shape,))


_1P, _2P = _via(_A), _via(_A, 2)
_2U = QueryShape("or", (_1P, _1P))

#: Shapes by name: paths (p), intersections (i), unions (u) and negations (n). Their slots are the
#: columns of the InductiveQE files.
STRUCTURES = MappingProxyType(
    {
        "1p": _1P,
        "2p": _2P,
        "3p": _via(_A, 3),
        "2i": _and(_1P, _1P),
        "3i": _and(_1P, _1P, _1P),
        "pi": _and(_2P, _1P),
        "ip": _via(_and(_1P, _1P)),
        "2in": _and(_1P, _not(_1P)),
        "3in": _and(_1P, _1P, _not(_1P)),
        "pin": _and(_2P, _not(_1P)),
        "pni": _and(_not(_2P), _1P),
        "inp": _via(_and(_1P, _not(_1P))),
        "2u": _2U,
        "up": _via(_2U),
    }
)

#: The structures without union and negation, over which papers average.
CONJUNCTIVE = ("1p", "2p", "3p", "2i", "3i", "pi", "ip")


def structure(name: str) -> QueryShape:
    """Returns the shape of a named structure.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in STRUCTURES:
        raise ValueError(f"'structure' must be one of {', '.join(STRUCTURES)} (got {name!r})")
    return STRUCTURES[name]


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
        cls, name: str, relations: Sequence[str | tuple[str, bool]], anchors: Sequence[str]
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
