"""The query structures that the field has names for."""

from types import MappingProxyType

from sheafprop.query.query_shape import QueryShape

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
    """The shape of a named structure.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in STRUCTURES:
        raise ValueError(f"'structure' must be one of {', '.join(STRUCTURES)} (got {name!r})")
    return STRUCTURES[name]
