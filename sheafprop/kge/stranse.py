from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.rows import promote
from sheafprop.kge.base import KGEModel, near_identity, unit_translations
from sheafprop.kge.closed_forms import Facts, closest_rotation
from sheafprop.sheaf import DenseSheaf


class STransE(KGEModel):
    r"""The STransE model from the `"STransE: a novel embedding model of entities and relationships
    in knowledge bases" <https://arxiv.org/abs/1606.08140>`_ paper.

    A relation maps heads and tails by two matrices and translates the results,

    .. math::
        f(h, r, t) = - {\| \mathbf{M}^h_r \mathbf{x}_h + \mathbf{b}_r
        - \mathbf{M}^t_r \mathbf{x}_t \|}_p

    with :math:`\mathbf{M}^h_r, \mathbf{M}^t_r \in \mathbb{R}^{d \times d}`. Mapped vectors are not
    clamped to the unit ball, because the restriction maps of a sheaf are linear.

    Entities are initialized from a normal distribution with :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1`
    and projected by :obj:`entity_constraint`. Maps are initialized to the identity with Gaussian
    noise of variance :math:`0.01 / d` per entry, and translations as in :class:`TransE`.

    Args:
        num_nodes, num_relations, hidden_channels, p, squared, entity_constraint: See
            :class:`KGEModel`.
    """

    name: ClassVar[str] = "stranse"

    def _make_relations(self) -> None:
        self.rel_emb = torch.nn.Embedding(self.num_relations, self.hidden_channels)
        shape = (self.num_relations, self.hidden_channels, self.hidden_channels)
        self.rel_map_head = torch.nn.Parameter(torch.empty(shape))
        self.rel_map_tail = torch.nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        unit_translations(self.rel_emb.weight, generator)
        near_identity(self.rel_map_head, 0.1, generator)
        near_identity(self.rel_map_tail, 0.1, generator)

    def sheaf(self) -> DenseSheaf:
        return DenseSheaf(
            promote(self.rel_map_head), promote(self.rel_map_tail), promote(self.rel_emb.weight)
        )

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        """As for :class:`SE`, of vectors without their means, which the translation joins."""
        turn = closest_rotation(facts.covariance(facts.tail, facts.head))
        eye = torch.eye(len(turn), dtype=turn.dtype, device=turn.device)
        shift = facts.mean(facts.tail) - turn @ facts.mean(facts.head)
        return {"rel_map_head": turn, "rel_map_tail": eye, "rel_emb.weight": shift}
