from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.rows import promote
from sheafprop.kge.base import KGEModel, near_identity
from sheafprop.kge.closed_forms import Facts, closest_rotation
from sheafprop.sheaf import DenseSheaf


class SE(KGEModel):
    r"""The Structured Embeddings model from the `"Learning Structured Embeddings of Knowledge
    Bases" <https://www.aaai.org/ocs/index.php/AAAI/AAAI11/paper/download/3659/3898>`_ paper.

    A relation maps heads and tails by two matrices,

    .. math::
        f(h, r, t) = - {\| \mathbf{M}^h_r \mathbf{x}_h - \mathbf{M}^t_r \mathbf{x}_t \|}_p

    with :math:`\mathbf{M}^h_r, \mathbf{M}^t_r \in \mathbb{R}^{d \times d}` (:math:`p = 1` is the
    paper's).

    Entities are initialized from a normal distribution with :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1`
    and projected by :obj:`entity_constraint`. Maps are initialized to the identity with Gaussian
    noise of variance :math:`0.25 / d` per entry.

    Args:
        num_nodes, num_relations, hidden_channels, p, squared, entity_constraint: See
            :class:`KGEModel`.
    """

    name: ClassVar[str] = "se"

    def _make_relations(self) -> None:
        shape = (self.num_relations, self.hidden_channels, self.hidden_channels)
        self.rel_map_head = torch.nn.Parameter(torch.empty(shape))
        self.rel_map_tail = torch.nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        near_identity(self.rel_map_head, 0.5, generator)
        near_identity(self.rel_map_tail, 0.5, generator)

    def sheaf(self) -> DenseSheaf:
        return DenseSheaf(promote(self.rel_map_head), promote(self.rel_map_tail))

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        r"""The orthogonal matrix at heads, with the identity at tails: Procrustes.

        Free matrices at heads would fit :math:`d` facts without a residual, whatever they say.
        """
        turn = closest_rotation((facts.weight.unsqueeze(1) * facts.tail).T @ facts.head)
        eye = torch.eye(len(turn), dtype=turn.dtype, device=turn.device)
        return {"rel_map_head": turn, "rel_map_tail": eye}
