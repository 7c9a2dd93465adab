"""Knowledge graph embedding models with their sheaves, losses and negative sampling."""

from sheafprop.kge.base import KGEModel
from sheafprop.kge.lineare import LineaRE
from sheafprop.kge.losses import (
    LOSS_REGISTRY,
    CrossEntropyLoss,
    MarginRankingLoss,
    NSSALoss,
    build_loss,
)
from sheafprop.kge.pairre import PairRE
from sheafprop.kge.registry import KGE_REGISTRY, build_model
from sheafprop.kge.rotate import RotatE
from sheafprop.kge.sampling import NegativeSampler
from sheafprop.kge.se import SE
from sheafprop.kge.stranse import STransE
from sheafprop.kge.su2e import SU2E
from sheafprop.kge.transe import TransE
from sheafprop.kge.transh import TransH
from sheafprop.kge.transr import TransR
from sheafprop.kge.um import UM

__all__ = [
    "KGE_REGISTRY",
    "LOSS_REGISTRY",
    "SE",
    "SU2E",
    "UM",
    "CrossEntropyLoss",
    "KGEModel",
    "LineaRE",
    "MarginRankingLoss",
    "NSSALoss",
    "NegativeSampler",
    "PairRE",
    "RotatE",
    "STransE",
    "TransE",
    "TransH",
    "TransR",
    "build_loss",
    "build_model",
]
