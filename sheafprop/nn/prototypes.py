from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.kernels.rows import add_rows

# Vectors are gathered for so many numbers at once, about 64 MiB in single precision.
_CHUNK_NUMBERS = 2**24


@dataclass(frozen=True, eq=False)
class RelationPrototypes:
    r"""Mean vector of the known entities at each (relation, side), over training triples.

    Rows are ordered tail sides first: row :math:`r` is the mean vector of the tails of relation
    :math:`r`, row :math:`R + r` that of its heads, each entity counted once for every triple.

    Args:
        mean (Tensor): ``[2R, d]``; rows without triples are zero.
        count (Tensor): Triples behind each row, ``[2R]``.
    """

    mean: Tensor
    count: Tensor

    @classmethod
    def from_triples(
        cls, x: Tensor, edge_index: Tensor, edge_type: Tensor, num_relations: int
    ) -> "RelationPrototypes":
        """Averages vectors over the triples of a training graph.

        Args:
            x (Tensor): Trained vectors ``[N, d]``.
            edge_index (Tensor): Heads and tails, int64 ``[2, E]``.
            edge_type (Tensor): Relations, int64 ``[E]``.
            num_relations (int): Number of relations :math:`R`.
        """
        head, tail = edge_index
        row = torch.cat([edge_type, edge_type + num_relations])
        vertex = torch.cat([tail, head])
        count = torch.bincount(row, minlength=2 * num_relations)
        total = x.new_zeros(2 * num_relations, x.shape[1])
        step = max(1, _CHUNK_NUMBERS // max(1, x.shape[1]))
        for some, of in zip(row.split(step), vertex.split(step), strict=True):
            total = total + add_rows(torch.zeros_like(total), 0, some, x[of])
        return cls(total / count.clamp_min(1).unsqueeze(1), count)

    def start(
        self,
        edge_index: Tensor,
        edge_type: Tensor,
        num_nodes: int,
        edge_weight: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Computes the mean prototype over the triple ends of each vertex, with multiplicity and
        weight.

        Ends of relations without training triples are skipped.

        Args:
            edge_index (Tensor): Heads and tails of the new graph, int64 ``[2, E]``.
            edge_type (Tensor): Relations, int64 ``[E]``.
            num_nodes (int): Number of vertices :math:`N`.
            edge_weight (Tensor, optional): Weights ``[E]``. (default: all one)

        Returns:
            The means ``[N, d]``, and a bool mask ``[N]`` of the vertices that have one.
        """
        real = torch.promote_types(self.mean.real.dtype, torch.float32)
        weight = (
            self.mean.real.new_ones(edge_type.numel(), dtype=real)
            if edge_weight is None
            else edge_weight.to(real)
        )
        ends = RelationIncidence.of_triples(
            edge_index[0], edge_index[1], edge_type, weight, num_nodes, self.count.numel() // 2
        )
        return self.average(ends.sum)

    def average(self, sum_ends: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Computes the same from a function ``sum_ends``, which sums rows of a table ``[2R, d]``
        over the triple ends of each vertex, with their weights."""
        # Sums of half precision would lose what they add.
        mean = self.mean.to(torch.promote_types(self.mean.dtype, torch.float32))
        usable = (self.count > 0).to(mean.real.dtype).unsqueeze(1)
        total = sum_ends(usable)
        found = total.flatten() > 0
        return sum_ends(mean * usable) / torch.where(total > 0, total, 1.0), found
