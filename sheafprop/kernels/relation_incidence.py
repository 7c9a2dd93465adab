import torch
from torch import Tensor

from sheafprop.kernels.csr_product import CSRProduct


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
        row = torch.cat([tail, head])
        col = torch.cat([edge_type, edge_type + num_relations])
        keep = row >= 0
        self.num_vertices, self.num_relations = num_vertices, num_relations
        self._like = weight
        self._product = CSRProduct(
            row[keep],
            col[keep],
            torch.cat([weight, weight])[keep],
            num_vertices,
            2 * num_relations,
        )

    def sum(self, table: Tensor) -> Tensor:
        """Sums rows of a table ``[2 R, ...]`` (tail side first) over each vertex's ends."""
        return self._product(table)

    def total(self) -> Tensor:
        """Weight of all ends of each vertex, ``[num_vertices, 1]``."""
        return self.sum(self._like.new_ones(2 * self.num_relations, 1))
