from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sheafprop.data import Vocabulary
from sheafprop.kge import KGEModel
from sheafprop.nn import RelationPrototypes


@dataclass(frozen=True, eq=False)
class StoredModel:
    """What a model folder holds: a trained model with all that propagation needs.

    Args:
        model (KGEModel): The model with its trained parameters.
        entities (Vocabulary): Labels of its entities.
        relations (Vocabulary): Labels of its relations.
        origins (tuple of str): Where the vector of each entity comes from, such as ``"trained"``.
        facts (Tensor): The observed triples ``(head, relation, tail)``, int64 ``[m, 3]``.
        prototypes (RelationPrototypes): Mean trained vectors at each (relation, side).
        residual_variance (Tensor): Mean squared residual of every relation over the facts, ``[R]``;
            zero for relations without facts.
        settings (dict): The chosen propagation, as plain values.
        metrics (dict): What was measured, as plain values.
    """

    model: KGEModel
    entities: Vocabulary
    relations: Vocabulary
    origins: tuple[str, ...]
    facts: Tensor
    prototypes: RelationPrototypes
    residual_variance: Tensor
    settings: dict[str, Any]
    metrics: dict[str, Any]
