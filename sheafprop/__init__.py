"""sheafprop: sheaf propagation layers for knowledge graph embeddings (PyTorch Geometric)."""

import importlib
from typing import TYPE_CHECKING, Any

from sheafprop.version import __version__

if TYPE_CHECKING:
    from sheafprop.data.knowledge_graph import KnowledgeGraph
    from sheafprop.kge import SE, RotatE, TransE, TransR
    from sheafprop.nn import (
        HarmonicExtension,
        HeteroGraph,
        SheafConv,
        SheafDiffusion,
        SheafPropagation,
        TrainableSheaf,
        k_hop_batch,
    )
    from sheafprop.pretrained.sheaf_model import SheafModel
    from sheafprop.ranking import RankMetrics
    from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, QuaternionSheaf

# Imported at first use, so that `import sheafprop` and the command line start without torch.
_HOMES = {
    name: home
    for home, names in {
        "sheafprop.data": "KnowledgeGraph",
        "sheafprop.kge": "RotatE SE TransE TransR",
        "sheafprop.nn": (
            "HarmonicExtension HeteroGraph SheafConv SheafDiffusion SheafPropagation "
            "TrainableSheaf k_hop_batch"
        ),
        "sheafprop.pretrained": "SheafModel",
        "sheafprop.ranking": "RankMetrics",
        "sheafprop.sheaf": "DenseSheaf DiagonalSheaf IdentitySheaf QuaternionSheaf",
    }.items()
    for name in names.split()
}

__all__ = [
    "SE",
    "DenseSheaf",
    "DiagonalSheaf",
    "HarmonicExtension",
    "HeteroGraph",
    "IdentitySheaf",
    "KnowledgeGraph",
    "QuaternionSheaf",
    "RankMetrics",
    "RotatE",
    "SheafConv",
    "SheafDiffusion",
    "SheafModel",
    "SheafPropagation",
    "TrainableSheaf",
    "TransE",
    "TransR",
    "__version__",
    "k_hop_batch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
