"""Propagation layers for PyTorch Geometric."""

from sheafprop.nn.batch import unbatch, unbatch_hetero
from sheafprop.nn.harmonic_extension import HarmonicExtension
from sheafprop.nn.harmonic_result import HarmonicResult
from sheafprop.nn.hetero_graph import HeteroGraph
from sheafprop.nn.prototypes import RelationPrototypes
from sheafprop.nn.sheaf_conv import SheafConv
from sheafprop.nn.sheaf_diffusion import SheafDiffusion
from sheafprop.nn.sheaf_propagation import SheafPropagation

__all__ = [
    "HarmonicExtension",
    "HarmonicResult",
    "HeteroGraph",
    "RelationPrototypes",
    "SheafConv",
    "SheafDiffusion",
    "SheafPropagation",
    "unbatch",
    "unbatch_hetero",
]
