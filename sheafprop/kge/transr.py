from typing import Any, ClassVar

import torch
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.errors import DataError
from sheafprop.kernels.rows import promote
from sheafprop.kge.base import EntityConstraint, KGEModel, near_identity, unit_translations
from sheafprop.kge.closed_forms import Facts
from sheafprop.sheaf import DenseSheaf

# Relations whose matrices are looked at together.
_RELATIONS = 64


class TransR(KGEModel):
    r"""The TransR model from the `"Learning Entity and Relation Embeddings for Knowledge Graph
    Completion" <https://aaai.org/papers/
    9491-learning-entity-and-relation-embeddings-for-knowledge-graph-completion/>`_ paper.

    A relation maps heads and tails by one matrix and translates the results,

    .. math::
        f(h, r, t) = - {\| \mathbf{M}_r \mathbf{x}_h + \mathbf{b}_r
        - \mathbf{M}_r \mathbf{x}_t \|}_p

    with :math:`\mathbf{M}_r \in \mathbb{R}^{k \times d}`. Mapped vectors are not clamped to the
    unit ball, because the restriction maps of a sheaf are linear.

    Entities are initialized from a normal distribution with :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1`
    and projected by :obj:`entity_constraint`. Maps are initialized to the identity with Gaussian
    noise of variance :math:`0.01 / d` per entry, and translations as in :class:`TransE`.

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

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        r"""The matrix of one of the model's relations, which a few facts cannot give, and the mean
        of the mapped :math:`\mathbf{x}_t - \mathbf{x}_h`.

        It is the one with the least residual where all are scaled to their mean Frobenius norm.
        """
        offset = facts.tail - facts.head
        spread = facts.covariance(offset, offset)
        maps = self.rel_map.split(_RELATIONS)
        norms = torch.cat([torch.linalg.matrix_norm(part.double()) for part in maps])
        # tr(M S M^T) is the mean squared residual under the best translation.
        parts = [(part.double() @ spread * part.double()).sum((1, 2)) for part in maps]
        residual = torch.cat(parts) / norms**2
        best = int(residual.nan_to_num(nan=torch.inf).argmin())
        if not norms[best] > 0:
            raise DataError("all matrices of the model are zero: a new relation can have none")
        chosen = self.rel_map[best].double() * (norms.mean() / norms[best])
        return {"rel_map": chosen, "rel_emb.weight": chosen @ facts.mean(offset)}
