from functools import cached_property

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
        self.num_vertices, self.num_relations = num_vertices, num_relations
        self._ends = (head, tail, edge_type, weight)

    @property
    def empty(self) -> bool:
        return self._ends[2].numel() == 0

    def sum(self, table: Tensor) -> Tensor:
        """Sums rows of a table ``[2 R, ...]`` (tail side first) over each vertex's ends."""
        width = table[:1].numel()
        if width > 1:
            return self._product(table)
        # A column is summed faster than the ends are sorted.
        row, col, weight = self._entries()
        value = weight.to(table.dtype) * table.flatten()[col]
        total = value.new_zeros(self.num_vertices).index_add(0, row, value)
        return total.view(-1, *table.shape[1:])

    def total(self) -> Tensor:
        """Weight of all ends of each vertex, ``[num_vertices, 1]``."""
        return self.sum(self._ends[3].new_ones(2 * self.num_relations, 1))

    def of(self, vertices: Tensor) -> "RelationIncidence":
        """The incidence of some of the vertices, which are numbered anew."""
        number = torch.full((self.num_vertices + 1,), -1, device=vertices.device)
        number[vertices] = torch.arange(vertices.numel(), device=vertices.device)
        # A vertex of -1 reads the last entry.
        head, tail, edge_type, weight = self._ends
        return RelationIncidence(
            number[head], number[tail], edge_type, weight, vertices.numel(), self.num_relations
        )

    def fingerprints(self, seed: int) -> Tensor:
        """Numbers ``[num_vertices]`` that equal rows share, and others by chance of 1 in 2^64."""
        row, col, weight = self._entries()
        generator = torch.Generator().manual_seed(seed)
        table = torch.randint(-(2**62), 2**62, (2 * self.num_relations,), generator=generator)
        bits = weight.view(torch.int32 if weight.element_size() == 4 else torch.int64)
        mixed = table.to(row.device)[col] ^ bits.long()
        # The finalizer of splitmix64, so that no sum of bits can stand for another.
        for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
            mixed = (mixed ^ (mixed >> shift)) * factor
        total = torch.zeros(self.num_vertices, dtype=torch.long, device=row.device)
        return total.index_add_(0, row, mixed ^ (mixed >> 31))

    @cached_property
    def _product(self) -> CSRProduct:
        shape = self.num_vertices, 2 * self.num_relations
        return CSRProduct(*self._entries(), *shape, merge=False)

    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        head, tail, edge_type, weight = self._ends
        row = torch.cat([tail, head])
        col = torch.cat([edge_type, edge_type + self.num_relations])
        weight = torch.cat([weight, weight])
        keep = row >= 0
        if bool(keep.all()):
            return row, col, weight
        return row[keep], col[keep], weight[keep]


def joint_product(ends: RelationIncidence, loops: RelationIncidence) -> tuple[CSRProduct, Tensor]:
    """Sums over ends and loops as one product with a table of the relations that occur.

    Returns:
        tuple[CSRProduct, Tensor]: The product, and what each row of its table stands for,
        ascending: the relation for a tail, plus :math:`R` for a head, plus :math:`2R` for a loop.
    """
    size = ends.num_relations
    row, column, weight = ends._entries()
    if not loops.empty:
        looped, relation, own = loops._entries()
        row, weight = torch.cat([row, looped]), torch.cat([weight, own])
        column = torch.cat([column, relation + 2 * size])
    used = torch.bincount(column, minlength=3 * size).nonzero().flatten()
    number = torch.zeros(3 * size, dtype=torch.long, device=column.device)
    number[used] = torch.arange(used.numel(), device=column.device)
    return CSRProduct(row, number[column], weight, ends.num_vertices, used.numel()), used


def equal_rows(ends: RelationIncidence, loops: RelationIncidence) -> tuple[Tensor, Tensor]:
    """The kinds of vertices that no sum over relations tells apart.

    Returns:
        tuple[Tensor, Tensor]: A vertex of each kind ``[m]`` and the kind of each vertex ``[n]``.
    """
    vertices = torch.arange(ends.num_vertices, device=ends._ends[2].device)
    if vertices.numel() < 2:
        return vertices, vertices
    # Odd factors keep the two apart.
    one, other = (ends.fingerprints(seed) + 3 * loops.fingerprints(seed + 2) for seed in (0, 1))
    distinct, kind = torch.unique(one, return_inverse=True)
    first = torch.empty_like(distinct).scatter_reduce_(
        0, kind, vertices, "amin", include_self=False
    )
    if first.numel() == vertices.numel() or not torch.equal(other, other[first][kind]):
        return vertices, vertices
    return first, kind
