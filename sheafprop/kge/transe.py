from typing import ClassVar, Literal

import torch
from torch import Tensor

from sheafprop.kernels.rows import promote
from sheafprop.kge.base import KGEModel, unit_translations
from sheafprop.kge.closed_forms import Facts
from sheafprop.sheaf import IdentitySheaf


class TransE(KGEModel):
    r"""The TransE model from the `"Translating Embeddings for Modeling Multi-Relational Data"
    <https://proceedings.neurips.cc/paper/2013/file/
    1cecc7a77928ca8133fa24680a88d2f9-Paper.pdf>`_ paper.

    Relations are translations,

    .. math::
        f(h, r, t) = - {\| \mathbf{x}_h + \mathbf{b}_r - \mathbf{x}_t \|}_p

    and all restriction maps of their sheaf are the identity.

    As in the paper, entities and relations are initialized uniformly in a cube with half edge
    :math:`6 / \sqrt{d}`. Relations are then scaled to unit norm once, and entities are projected by
    :obj:`entity_constraint`.

    Args:
        num_nodes, num_relations, hidden_channels, p, squared, entity_constraint: See
            :class:`KGEModel`.
    """

    name: ClassVar[str] = "transe"
    isometric: ClassVar[bool] = True
    _start: ClassVar[Literal["normal", "uniform"]] = "uniform"

    def _make_relations(self) -> None:
        self.rel_emb = torch.nn.Embedding(self.num_relations, self.hidden_channels)
        self.reset_parameters()

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        unit_translations(self.rel_emb.weight, generator)

    def sheaf(self) -> IdentitySheaf:
        return IdentitySheaf(translation=promote(self.rel_emb.weight))

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        r"""The mean of :math:`\mathbf{x}_t - \mathbf{x}_h`."""
        return {"rel_emb.weight": facts.mean(facts.tail - facts.head)}
