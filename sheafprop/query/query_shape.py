from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from types import MappingProxyType
from typing import Literal

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
