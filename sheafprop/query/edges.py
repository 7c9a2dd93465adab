from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Edges:
    """One edge of every query of a batch, walked from its source to its target.

    Args:
        relation (Tensor): Ids ``[Q]`` below :math:`2R`; from :math:`R` on inverse.
        weight (Tensor): Weights ``[Q]``, float64.
    """

    relation: Tensor
    weight: Tensor
