from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.algebra import QUATERNIONS
from sheafprop.kernels.rows import promote
from sheafprop.kge.base import KGEModel, fill_
from sheafprop.kge.closed_forms import Facts
from sheafprop.sheaf import QuaternionSheaf


class SU2E(KGEModel):
    r"""The SU2E model from the `"NagE: Non-Abelian Group Embedding for Knowledge Graphs"
    <https://arxiv.org/abs/2005.10956>`_ paper.

    Vectors are quaternions, or pairs of complex numbers, and relations are unit quaternions, the
    group :math:`\mathrm{SU}(2)`, which multiply heads from the left,

    .. math::
        f(h, r, t) = - {\| \mathbf{q}_r \mathbf{x}_h - \mathbf{x}_t \|}_p, \qquad
        |\mathbf{q}_{r, j}| = 1

    Unlike in :class:`RotatE`, relations do not commute in general. The sheaf has
    :math:`\mathbf{q}_r` at heads and the identity at tails. The norm is that of the moduli of the
    quaternions.

    A relation has four parameters for each quaternion, which are normalized (the paper uses three
    angles); a zero quaternion is treated as one. Entities are initialized from a normal
    distribution with :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1` and projected by
    :obj:`entity_constraint`, quaternions uniformly on the sphere.

    Args:
        num_nodes, num_relations, p, squared, entity_constraint: See :class:`KGEModel`.
        hidden_channels (int): The dimension :math:`d` in real numbers, a multiple of four.

    Raises:
        ValueError: If the dimension is not a multiple of four, or as in :class:`KGEModel`.
    """

    name: ClassVar[str] = "su2e"
    block: ClassVar[int] = 4
    isometric: ClassVar[bool] = True

    def _make_relations(self) -> None:
        if self.hidden_channels % 4:
            raise ValueError(
                "'hidden_channels' of SU2E must be a multiple of four, the numbers of a quaternion "
                f"(got {self.hidden_channels})"
            )
        self.rel_emb = torch.nn.Embedding(self.num_relations, self.hidden_channels)
        self.reset_parameters()

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        shape = (self.num_relations, self.hidden_channels // 4, 4)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        fill_(self.rel_emb.weight, torch.nn.functional.normalize(drawn, dim=-1).flatten(1))

    def sheaf(self) -> QuaternionSheaf:
        rows = promote(self.rel_emb.weight).unflatten(-1, (-1, 4))
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        one = rows.new_tensor([1.0, 0.0, 0.0, 0.0])
        unit = torch.where(length > 0, rows / length.masked_fill(length == 0, 1.0), one)
        return QuaternionSheaf(unit.flatten(-2))

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        r"""The sum of :math:`\mathbf{x}_t \bar{\mathbf{x}}_h` at unit length, since
        :math:`\langle x_t, q x_h \rangle = \langle x_t \bar{x}_h, q \rangle`."""
        products = QUATERNIONS.multiply(facts.tail, QUATERNIONS.conjugate(facts.head))
        rows = facts.mean(products).unflatten(-1, (-1, 4))
        return {"rel_emb.weight": torch.nn.functional.normalize(rows, dim=-1).flatten(-2)}
