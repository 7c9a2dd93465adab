from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.rows import promote
from sheafprop.kge.base import KGEModel, near_one
from sheafprop.kge.closed_forms import Facts, fit_pair
from sheafprop.sheaf import DiagonalSheaf


class PairRE(KGEModel):
    r"""The PairRE model from the `"PairRE: Knowledge Graph Embeddings via Paired Relation Vectors"
    <https://arxiv.org/abs/2011.03798>`_ paper.

    A relation scales the coordinates of heads and of tails,

    .. math::
        f(h, r, t) = - {\| \mathbf{a}_r \circ \mathbf{x}_h - \mathbf{c}_r \circ \mathbf{x}_t \|}_p

    for entities of unit length (:math:`p = 1` in the paper). The sheaf has
    :math:`\mathrm{diag}(\mathbf{a}_r)` at heads, :math:`\mathrm{diag}(\mathbf{c}_r)` at tails and
    no translation. Propagated vectors are scored without normalization; :meth:`rescale_entities`
    scales them to unit norm.

    Entities are initialized from a normal distribution with :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1`
    and projected by :obj:`entity_constraint`. Diagonals are initialized to one with Gaussian noise
    of variance :math:`0.25`.

    Args:
        num_nodes, num_relations, hidden_channels, p, squared, entity_constraint: See
            :class:`KGEModel`.
    """

    name: ClassVar[str] = "pairre"

    def _make_relations(self) -> None:
        shape = (self.num_relations, self.hidden_channels)
        self.rel_map_head = torch.nn.Parameter(torch.empty(shape))
        self.rel_map_tail = torch.nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        near_one(self.rel_map_head, 0.5, generator)
        near_one(self.rel_map_tail, 0.5, generator)

    def sheaf(self) -> DiagonalSheaf:
        return DiagonalSheaf(promote(self.rel_map_head), promote(self.rel_map_tail))

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        r"""The smallest eigenvector of each column, see
        :func:`~sheafprop.kge.closed_forms.fit_pair`, where :math:`(a, c)` has the mean length that
        it has in that column of the model's relations.
        """
        length = torch.hypot(self.rel_map_head.double(), self.rel_map_tail.double()).mean(0)
        head, tail = fit_pair(facts)
        return {"rel_map_head": length * head, "rel_map_tail": length * tail}
