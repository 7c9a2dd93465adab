from functools import cached_property

import torch
from torch import Tensor

from sheafprop.kernels.csr_product import CSRProduct

# Wider rows than this are worth merging the ends of one relation at one vertex.
_NARROW = 1024


class RelationIncidence:
    r"""Weighted counts of triple ends: how much of (relation, side) meets each vertex.

    The matrix is ``[num_vertices, 2 R]``; column :math:`r` counts the triples of relation :math:`r`
    whose tail the vertex is, column :math:`R + r` those whose head it is. Whatever a vertex sums
    over its triple ends and that depends on the relation alone (translations, diagonal blocks,
    degrees, prototypes) is one product with a table of :math:`2R` rows.

    Args:
        head, tail (Tensor): Vertex of each end, int64 ``[E]``; -1 where the vertex does not count.
        edge_type (Tensor): Relation ids ``[E]``.
        weight (Tensor): Edge weights ``[E]``.
    """

    def __init__(
        self,
        head: Tensor,
        tail: Tensor,
        edge_type: Tensor,
        weight: Tensor,
        num_vertices: int,
        num_relations: int,
    ):
        self.num_vertices, self.num_relations = num_vertices, num_relations
        self._ends = (head, tail, edge_type, weight)

    @property
    def empty(self) -> bool:
        return self._ends[2].numel() == 0

    def sum(self, table: Tensor) -> Tensor:
        """Sums rows of a table ``[2 R, ...]`` (tail side first) over each vertex's ends."""
        width = table[:1].numel()
        if width > 1:
            return (self._merged if width > _NARROW else self._product)(table)
        # A column is summed faster than the ends are sorted.
        row, col, weight = self._entries()
        value = weight.to(table.dtype) * table.flatten()[col]
        total = value.new_zeros(self.num_vertices).index_add(0, row, value)
        return total.view(-1, *table.shape[1:])

    def total(self) -> Tensor:
        """Weight of all ends of each vertex, ``[num_vertices, 1]``."""
        return self.sum(self._ends[3].new_ones(2 * self.num_relations, 1))

    @cached_property
    def _product(self) -> CSRProduct:
        shape = self.num_vertices, 2 * self.num_relations
        return CSRProduct(*self._entries(), *shape, merge=False)

    @cached_property
    def _merged(self) -> CSRProduct:
        return CSRProduct(*self._entries(), self.num_vertices, 2 * self.num_relations)

    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        head, tail, edge_type, weight = self._ends
        row = torch.cat([tail, head])
        col = torch.cat([edge_type, edge_type + self.num_relations])
        weight = torch.cat([weight, weight])
        keep = row >= 0
        if bool(keep.all()):
            return row, col, weight
        return row[keep], col[keep], weight[keep]
