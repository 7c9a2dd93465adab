from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kge.base import KGEModel
from sheafprop.kge.closed_forms import Facts
from sheafprop.sheaf import IdentitySheaf


class UM(KGEModel):
    r"""The unstructured model from the `"A Semantic Matching Energy Function for Learning with
    Multi-relational Data" <https://link.springer.com/content/pdf/10.1007/s10994-013-5363-6.pdf>`_
    paper.

    The score does not depend on the relation,

    .. math::
        f(h, r, t) = - {\| \mathbf{x}_h - \mathbf{x}_t \|}_p

    so its sheaf has identity maps and no translations, and propagation is feature propagation. It
    serves as a baseline.

    Entities are initialized from a normal distribution with :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1`
    and projected by :obj:`entity_constraint`.

    Args:
        num_nodes, num_relations, hidden_channels, p, squared, entity_constraint: See
            :class:`KGEModel`.
    """

    name: ClassVar[str] = "um"
    isometric: ClassVar[bool] = True

    def _make_relations(self) -> None:
        self.reset_parameters()

    def sheaf(self) -> IdentitySheaf:
        return IdentitySheaf(relations=self.num_relations)

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        pass

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        """Nothing: all relations are the same."""
        return {}
