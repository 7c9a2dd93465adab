from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.rows import promote
from sheafprop.kge.base import KGEModel, near_one, unit_translations
from sheafprop.kge.closed_forms import Facts, fit_line
from sheafprop.sheaf import DiagonalSheaf


class LineaRE(KGEModel):
    r"""The LineaRE model from the `"LineaRE: Simple but Powerful Knowledge Graph Embedding for Link
    Prediction" <https://arxiv.org/abs/2004.10037>`_ paper.

    A relation is a linear function of each coordinate,

    .. math::
        f(h, r, t) = - {\| \mathbf{a}_r \circ \mathbf{x}_h + \mathbf{b}_r
        - \mathbf{c}_r \circ \mathbf{x}_t \|}_p

    (:math:`p = 1` in the paper). The sheaf has :math:`\mathrm{diag}(\mathbf{a}_r)` at heads,
    :math:`\mathrm{diag}(\mathbf{c}_r)` at tails and the translation :math:`\mathbf{b}_r`.

    Entities are initialized from a normal distribution with :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1`
    and projected by :obj:`entity_constraint`. Diagonals are initialized to one with Gaussian noise
    of variance :math:`0.01`, and translations as in :class:`TransE`.

    Args:
        num_nodes, num_relations, hidden_channels, p, squared, entity_constraint: See
            :class:`KGEModel`.
    """

    name: ClassVar[str] = "lineare"

    def _make_relations(self) -> None:
        self.rel_emb = torch.nn.Embedding(self.num_relations, self.hidden_channels)
        shape = (self.num_relations, self.hidden_channels)
        self.rel_map_head = torch.nn.Parameter(torch.empty(shape))
        self.rel_map_tail = torch.nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        unit_translations(self.rel_emb.weight, generator)
        near_one(self.rel_map_head, 0.1, generator)
        near_one(self.rel_map_tail, 0.1, generator)

    def sheaf(self) -> DiagonalSheaf:
        return DiagonalSheaf(
            promote(self.rel_map_head), promote(self.rel_map_tail), promote(self.rel_emb.weight)
        )

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        """The least squares line of each column, with the identity at tails."""
        slope, shift = fit_line(facts)
        ones = torch.ones_like(slope)
        return {"rel_map_head": slope, "rel_map_tail": ones, "rel_emb.weight": shift}
