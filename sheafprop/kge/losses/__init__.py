"""Losses of knowledge graph embedding models, over scores that are higher for better triples."""

import inspect
from typing import Any

from torch.nn import Module

from sheafprop.kge.losses.cross_entropy_loss import CrossEntropyLoss
from sheafprop.kge.losses.margin_ranking_loss import MarginRankingLoss
from sheafprop.kge.losses.nssa_loss import NSSALoss

LOSS_REGISTRY: dict[str, type[Module]] = {
    loss.name: loss for loss in (CrossEntropyLoss, NSSALoss, MarginRankingLoss)
}


def build_loss(name: str, **config: Any) -> Module:
    r"""Builds a loss from its name in :obj:`LOSS_REGISTRY` and the arguments of its constructor.

    Raises:
        ValueError: If the loss is unknown or does not accept an argument.
    """
    if name not in LOSS_REGISTRY:
        raise ValueError(f"There is no loss '{name}'; expected one of {sorted(LOSS_REGISTRY)}")
    loss = LOSS_REGISTRY[name]
    taken = list(inspect.signature(loss).parameters)
    wrong = [key for key in config if key not in taken]
    if wrong:
        raise ValueError(
            f"The loss '{name}' takes no argument '{wrong[0]}'; expected some of {taken}"
        )
    return loss(**config)


__all__ = ["LOSS_REGISTRY", "CrossEntropyLoss", "MarginRankingLoss", "NSSALoss", "build_loss"]
