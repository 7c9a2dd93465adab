from functools import cached_property

import torch
from torch import Tensor

from sheafprop.kernels.coupling import CouplingEntries
from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.kernels.rows import add_rows, take_rows


class RelationIncidence:
    r"""Weighted counts of triple ends: how much of (relation, side) meets each vertex.

    The matrix is ``[num_vertices, 2 R]``; column :math:`r` counts the triples of relation :math:`r`
    whose tail the vertex is, column :math:`R + r` those whose head it is. Whatever a vertex sums
    over its triple ends and that depends on the relation alone (translations, diagonal blocks,
    degrees, prototypes) is one product with a table of :math:`2R` rows.

    Args:
        vertex (Tensor): Vertex of each end, int64 ``[m]``.
        label (Tensor): Column of each end, int64 ``[m]``.
        weight (Tensor): Weights of the triples, ``[m]``.
        num_vertices, num_relations (int): Number of vertices, and :math:`R`.
    """

    def __init__(
        self, vertex: Tensor, label: Tensor, weight: Tensor, num_vertices: int, num_relations: int
    ):
        self.vertex, self.label, self.weight = vertex, label, weight
        self.num_vertices, self.num_relations = num_vertices, num_relations

    @classmethod
    def of_triples(
        cls,
        head: Tensor,
        tail: Tensor,
        edge_type: Tensor,
        weight: Tensor,
        num_vertices: int,
        num_relations: int,
    ) -> "RelationIncidence":
        """The ends of triples, ``[2 E]``: all their tails, then all their heads."""
        return cls(
            torch.cat([tail, head]),
            torch.cat([edge_type, edge_type + num_relations]),
            torch.cat([weight, weight]),
            num_vertices,
            num_relations,
        )

    @property
    def empty(self) -> bool:
        return self.vertex.numel() == 0

    def sum(self, table: Tensor) -> Tensor:
        """Sums rows of a table ``[2 R, ...]`` (tail side first) over each vertex's ends."""
        width = table[:1].numel()
        if width > 1:
            return self._product(table)
        # A column is summed faster than the ends are sorted.
        value = self.weight.to(table.dtype) * take_rows(table.flatten(), 0, self.label)
        total = add_rows(value.new_zeros(self.num_vertices), 0, self.vertex, value)
        return total.view(-1, *table.shape[1:])

    def total(self) -> Tensor:
        """Weight of all ends of each vertex, ``[num_vertices, 1]``."""
        total = self.weight.new_zeros(self.num_vertices)
        return total.index_add_(0, self.vertex, self.weight).unsqueeze(1)

    def where(self, mask: Tensor) -> "RelationIncidence":
        """The ends that a mask ``[m]`` marks."""
        index = mask.nonzero().flatten()
        return RelationIncidence(
            self.vertex[index],
            self.label[index],
            self.weight[index],
            self.num_vertices,
            self.num_relations,
        )

    def messages(self, src: Tensor, num_src: int, *, symmetric: bool = False) -> CouplingEntries:
        """What the ends receive from the vertices ``src`` ``[m]`` at the other ends."""
        return CouplingEntries(
            self.vertex, src, self.label, self.weight, self.num_vertices, num_src, symmetric
        )

    def of(self, vertices: Tensor) -> "RelationIncidence":
        """The incidence of some of the vertices, which are numbered anew."""
        number = torch.full((self.num_vertices,), -1, device=vertices.device)
        number[vertices] = torch.arange(vertices.numel(), device=vertices.device)
        part = self.where(number[self.vertex] >= 0)
        part.vertex, part.num_vertices = number[part.vertex], vertices.numel()
        return part

    def fingerprints(self, seed: int) -> Tensor:
        """Numbers ``[num_vertices]`` that equal rows share, and others by chance of 1 in 2^64."""
        vertex, weight = self.vertex, self.weight
        generator = torch.Generator().manual_seed(seed)
        table = torch.randint(-(2**62), 2**62, (2 * self.num_relations,), generator=generator)
        bits = weight.view(torch.int32 if weight.element_size() == 4 else torch.int64)
        mixed = table.to(vertex.device)[self.label] ^ bits.long()
        # The finalizer of splitmix64, so that no sum of bits can stand for another.
        for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
            mixed = (mixed ^ (mixed >> shift)) * factor
        total = torch.zeros(self.num_vertices, dtype=torch.long, device=vertex.device)
        return total.index_add_(0, vertex, mixed ^ (mixed >> 31))

    @cached_property
    def _product(self) -> CSRProduct:
        shape = self.num_vertices, 2 * self.num_relations
        return CSRProduct(self.vertex, self.label, self.weight, *shape, merge=False)


def joint_product(ends: RelationIncidence, loops: RelationIncidence) -> tuple[CSRProduct, Tensor]:
    """Sums over ends and loops as one product with a table of the relations that occur.

    Returns:
        tuple[CSRProduct, Tensor]: The product, and what each row of its table stands for,
        ascending: the relation for a tail, plus :math:`R` for a head, plus :math:`2R` for a loop.
    """
    size = ends.num_relations
    row, column, weight = ends.vertex, ends.label, ends.weight
    if not loops.empty:
        row, weight = torch.cat([row, loops.vertex]), torch.cat([weight, loops.weight])
        column = torch.cat([column, loops.label + 2 * size])
    used = torch.bincount(column, minlength=3 * size).nonzero().flatten()
    number = torch.zeros(3 * size, dtype=torch.long, device=column.device)
    number[used] = torch.arange(used.numel(), device=column.device)
    return CSRProduct(row, number[column], weight, ends.num_vertices, used.numel()), used


def equal_rows(ends: RelationIncidence, loops: RelationIncidence) -> tuple[Tensor, Tensor]:
    """The kinds of vertices that no sum over relations tells apart.

    Returns:
        tuple[Tensor, Tensor]: A vertex of each kind ``[m]`` and the kind of each vertex ``[n]``.
    """
    vertices = torch.arange(ends.num_vertices, device=ends.vertex.device)
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
