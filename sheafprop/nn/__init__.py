"""Propagation layers for PyTorch Geometric."""

from typing import TYPE_CHECKING, Any

from sheafprop.nn.anchors import AnchoredGraph, add_anchors
from sheafprop.nn.harmonic_extension import HarmonicExtension, HarmonicResult
from sheafprop.nn.hetero_graph import HeteroGraph
from sheafprop.nn.k_hop_batch import k_hop_batch
from sheafprop.nn.proximity import Proximity, proximity
from sheafprop.nn.relation_proximity import RelationProximity
from sheafprop.nn.sheaf_conv import SheafConv
from sheafprop.nn.sheaf_diffusion import SheafDiffusion
from sheafprop.nn.sheaf_propagation import SheafPropagation
from sheafprop.nn.start import RelationPrototypes, draw_sections, rescale_sections, start_sections
from sheafprop.nn.trainable_sheaf import TrainableSheaf
from sheafprop.renamed import find_renamed

__all__ = [
    "AnchoredGraph",
    "HarmonicExtension",
    "HarmonicResult",
    "HeteroGraph",
    "Proximity",
    "RelationPrototypes",
    "RelationProximity",
    "SheafConv",
    "SheafDiffusion",
    "SheafPropagation",
    "TrainableSheaf",
    "add_anchors",
    "draw_sections",
    "k_hop_batch",
    "proximity",
    "rescale_sections",
    "start_sections",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return find_renamed(__name__, name)
