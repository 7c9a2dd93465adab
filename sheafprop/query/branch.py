from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sheafprop.query.branch_energy import BranchEnergy
from sheafprop.query.edges import Edges
from sheafprop.query.query_shape import QueryShape


@dataclass(frozen=True, eq=False)
class Branch:
    """A node of an eliminated query: an entity's vector, or the energy at the vertex it ends at."""

    shape: QueryShape
    known: Tensor | None
    energy: BranchEnergy | None
    edges: Edges | None
    inner: tuple[Branch, ...]
