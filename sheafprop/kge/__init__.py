"""Knowledge graph embedding models with their sheaves, losses and negative sampling."""

from typing import Any

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
from sheafprop.kge.rotate import RotatE
from sheafprop.kge.sampling import NegativeSampler
from sheafprop.kge.se import SE
from sheafprop.kge.stranse import STransE
from sheafprop.kge.su2e import SU2E
from sheafprop.kge.transe import TransE
from sheafprop.kge.transh import TransH
from sheafprop.kge.transr import TransR
from sheafprop.kge.um import UM

# The models by name, for configuration files and stored models.
KGE_REGISTRY: dict[str, type[KGEModel]] = {
    model.name: model
    for model in (TransE, RotatE, TransR, SE, PairRE, TransH, STransE, LineaRE, UM, SU2E)
}


def build_model(name: str, **config: Any) -> KGEModel:
    r"""Builds a model from its name in :obj:`KGE_REGISTRY` and the arguments that :meth:`config`
    returns.

    Raises:
        ValueError: If the model is unknown.
    """
    if name not in KGE_REGISTRY:
        raise ValueError(f"There is no model '{name}'; expected one of {sorted(KGE_REGISTRY)}")
    return KGE_REGISTRY[name](**config)


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
