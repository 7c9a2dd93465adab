"""Relation sheaves by map kind, and the operators they define."""

from sheafprop.sheaf.coboundary import coboundary, coboundary_adjoint, edge_energy
from sheafprop.sheaf.dense_sheaf import DenseSheaf
from sheafprop.sheaf.diagonal_sheaf import DiagonalSheaf
from sheafprop.sheaf.identity_sheaf import IdentitySheaf
from sheafprop.sheaf.plan import PropagationPlan
from sheafprop.sheaf.quaternion_sheaf import QuaternionSheaf
from sheafprop.sheaf.relation_sheaf import RelationSheaf

__all__ = [
    "DenseSheaf",
    "DiagonalSheaf",
    "IdentitySheaf",
    "PropagationPlan",
    "QuaternionSheaf",
    "RelationSheaf",
    "coboundary",
    "coboundary_adjoint",
    "edge_energy",
]
