"""Propagation layers for PyTorch Geometric."""

from sheafprop.nn.prototypes import RelationPrototypes
from sheafprop.nn.sheaf_conv import SheafConv
from sheafprop.nn.sheaf_propagation import SheafPropagation

__all__ = ["RelationPrototypes", "SheafConv", "SheafPropagation"]
