from typing import Any, ClassVar

import torch

from sheafprop.checks import check_integer
from sheafprop.kernels.rows import promote
from sheafprop.kge.base import EntityConstraint, KGEModel, near_identity, unit_translations
from sheafprop.sheaf import DenseSheaf


class TransR(KGEModel):
    r"""The TransR model from the `"Learning Entity and Relation Embeddings for Knowledge Graph
    Completion" <https://aaai.org/papers/
    9491-learning-entity-and-relation-embeddings-for-knowledge-graph-completion/>`_ paper.

    A relation maps heads and tails by one matrix and translates there,

    .. math::
        f(h, r, t) = - {\| \mathbf{M}_r \mathbf{x}_h + \mathbf{b}_r
        - \mathbf{M}_r \mathbf{x}_t \|}_p

    with :math:`\mathbf{M}_r \in \mathbb{R}^{k \times d}`. Mapped vectors are not clamped to the
    unit ball, as the restriction maps of a sheaf are linear.

    Entities start normal with :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1` and are then moved to what
    :obj:`entity_constraint` asks, maps start as the identity with Gaussian noise of variance
    :math:`0.01 / d` per entry, translations as those of :class:`TransE`.

    Args:
        num_nodes, num_relations, hidden_channels, p, squared, entity_constraint: See
            :class:`KGEModel`.
        relation_channels (int, optional): The dimension :math:`k` of the edge stalks.
            (default: :obj:`hidden_channels`)
    """

    name: ClassVar[str] = "transr"

    def __init__(
        self,
        num_nodes: int,
        num_relations: int,
        hidden_channels: int,
        *,
        relation_channels: int | None = None,
        p: float = 2.0,
        squared: bool = False,
        entity_constraint: EntityConstraint | None = "unit",
    ) -> None:
        super().__init__(
            num_nodes,
            num_relations,
            hidden_channels,
            p=p,
            squared=squared,
            entity_constraint=entity_constraint,
        )
        if relation_channels is None:
            relation_channels = hidden_channels
        check_integer("relation_channels", relation_channels, 1)
        self.relation_channels = self.edge_channels = relation_channels
        self.rel_emb = torch.nn.Embedding(num_relations, relation_channels)
        self.rel_map = torch.nn.Parameter(
            torch.empty(num_relations, relation_channels, hidden_channels)
        )
        self.reset_parameters()

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        unit_translations(self.rel_emb.weight, generator)
        near_identity(self.rel_map, 0.1, generator)

    def sheaf(self) -> DenseSheaf:
        maps = promote(self.rel_map)
        return DenseSheaf(maps, maps, promote(self.rel_emb.weight))

    def config(self) -> dict[str, Any]:
        return super().config() | {"relation_channels": self.relation_channels}
