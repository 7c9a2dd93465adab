import math
from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.rows import promote
from sheafprop.kge.base import KGEModel, fill_
from sheafprop.kge.closed_forms import Facts
from sheafprop.sheaf import DiagonalSheaf
from sheafprop.sheaf.relation_sheaf import Side


class RotatE(KGEModel):
    r"""The RotatE model from the `"RotatE: Knowledge Graph Embedding by Relational Rotation in
    Complex Space" <https://arxiv.org/abs/1902.10197>`_ paper.

    Vectors are complex, and relations rotate their coordinates,

    .. math::
        f(h, r, t) = - {\| e^{i \boldsymbol{\theta}_r} \circ \mathbf{x}_h - \mathbf{x}_t \|}_p

    where the :math:`p`-norm is that of the complex moduli (:math:`p = 1` in the paper). The
    sheaf has :math:`\mathrm{diag}(e^{i \boldsymbol{\theta}_r})` at heads and the identity at tails.

    Parameters are real: an entity table of :math:`2d` columns with alternating real and imaginary
    parts, and a table of phases. Entities are initialized from a complex normal distribution with
    :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1` and projected by :obj:`entity_constraint`; phases are
    uniform in :math:`[-\pi, \pi)`.

    Args:
        num_nodes, num_relations, hidden_channels, p, squared, entity_constraint: See
            :class:`KGEModel`.
    """

    name: ClassVar[str] = "rotate"
    is_complex: ClassVar[bool] = True
    isometric: ClassVar[bool] = True

    def _make_relations(self) -> None:
        self.rel_emb = torch.nn.Embedding(self.num_relations, self.hidden_channels)
        self.reset_parameters()

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        shape = self.rel_emb.weight.shape
        turns = torch.rand(shape, generator=generator, dtype=torch.float64)
        fill_(self.rel_emb.weight, math.pi * (2 * turns - 1))

    def sheaf(self) -> DiagonalSheaf:
        phase = promote(self.rel_emb.weight)
        return DiagonalSheaf(head=torch.polar(torch.ones_like(phase), phase))

    def _query(self, known: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        # As the sheaf does, with the phases of the relations that occur.
        phase = promote(self.rel_emb(rel_type)).unsqueeze(1)
        sine = phase.sin() if side == "tail" else -phase.sin()
        turn = torch.complex(phase.cos(), sine)
        return torch.view_as_real(self.as_vectors(known) * turn).flatten(-2)

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        r"""The phases of the sum of :math:`\bar{\mathbf{x}}_h \circ \mathbf{x}_t`."""
        return {"rel_emb.weight": facts.mean(facts.head.conj() * facts.tail).angle()}
