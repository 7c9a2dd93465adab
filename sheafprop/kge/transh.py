from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.rows import promote
from sheafprop.kge.base import KGEModel, fill_, unit_translations
from sheafprop.kge.closed_forms import Facts, widest_direction
from sheafprop.sheaf import DenseSheaf, RelationSheaf
from sheafprop.sheaf.relation_sheaf import Side


@dataclass(frozen=True, eq=False)
class _HyperplaneSheaf(RelationSheaf):
    """Projections on the hyperplanes of unit normals ``[R, d]``, not written out as matrices."""

    normal: Tensor
    translation: Tensor

    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return self.apply_map(x, self.normal[edge_type])

    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return self.restrict(y, edge_type, side)

    def translation_of(self, edge_type: Tensor) -> Tensor:
        return self.translation[edge_type]

    def map_parameters(self, side: Side, relations: Tensor) -> Tensor:
        return self.normal[relations]

    def apply_map(self, x: Tensor, parameters: Tensor) -> Tensor:
        return x - (x * parameters).sum(-1, keepdim=True) * parameters


class TransH(KGEModel):
    r"""The TransH model from the `"Knowledge Graph Embedding by Translating on Hyperplanes"
    <https://aaai.org/papers/8870-knowledge-graph-embedding-by-translating-on-hyperplanes/>`_ paper.

    A relation projects heads and tails onto a hyperplane and translates them,

    .. math::
        f(h, r, t) = - {\| \mathbf{P}_r \mathbf{x}_h + \mathbf{b}_r
        - \mathbf{P}_r \mathbf{x}_t \|}_p, \qquad
        \mathbf{P}_r = \mathbf{I} - \mathbf{w}_r \mathbf{w}_r^\top

    with a unit normal :math:`\mathbf{w}_r`, stored as an unnormalized vector. Scores cost as much
    as those of :class:`TransE`; only :meth:`sheaf` materializes the projections as
    :math:`d \times d` matrices. The soft constraint of the paper that translations lie in the
    hyperplane is not used: their normal component adds a constant to all squared distances of a
    relation and has no effect on propagation.

    Entities are initialized from a normal distribution with :math:`\mathbb{E} \|\mathbf{x}\|^2 = 1`
    and projected by :obj:`entity_constraint`. Normals are initialized in random directions, and
    translations as in :class:`TransE`.

    Args:
        num_nodes, num_relations, hidden_channels, p, squared, entity_constraint: See
            :class:`KGEModel`.
    """

    name: ClassVar[str] = "transh"

    def _make_relations(self) -> None:
        self.rel_emb = torch.nn.Embedding(self.num_relations, self.hidden_channels)
        self.rel_normal = torch.nn.Parameter(torch.empty(self.num_relations, self.hidden_channels))
        self.reset_parameters()

    def sheaf(self) -> DenseSheaf:
        normal, translation = self._score_sheaf().tensors().values()
        eye = torch.eye(self.hidden_channels, dtype=normal.dtype, device=normal.device)
        maps = eye - normal.unsqueeze(2) * normal.unsqueeze(1)
        return DenseSheaf(maps, maps, translation)

    def _score_sheaf(self) -> "_HyperplaneSheaf":
        normal = torch.nn.functional.normalize(promote(self.rel_normal), dim=-1)
        return _HyperplaneSheaf(normal, promote(self.rel_emb.weight))

    def _reset_relations(self, generator: torch.Generator | None) -> None:
        unit_translations(self.rel_emb.weight, generator)
        shape = self.rel_normal.shape
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        fill_(self.rel_normal, torch.nn.functional.normalize(normal, dim=-1))

    def _fit(self, facts: Facts) -> dict[str, Tensor]:
        r"""The normal along which :math:`\mathbf{x}_t - \mathbf{x}_h` varies most, and the
        projected mean of that difference.
        """
        offset = facts.tail - facts.head
        normal, mean = widest_direction(facts.covariance(offset, offset)), facts.mean(offset)
        return {"rel_normal": normal, "rel_emb.weight": mean - (normal @ mean) * normal}
