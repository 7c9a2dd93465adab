from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sheafprop.kernels.coupling import Coupling, CouplingEntries, TypedEntries
from sheafprop.kernels.diagonal_coupling import DiagonalCoupling
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.kernels.rows import take_rows
from sheafprop.sheaf.relation_sheaf import RelationSheaf, Side, common_dtype
from sheafprop.sheaf.vertex_blocks import DiagonalBlocks, VertexBlocks


@dataclass(frozen=True, eq=False, repr=False)
class TableSheaf(RelationSheaf):
    r"""Both restriction maps multiply by a row of a table, in an algebra of small blocks.

    Moduli are multiplicative, so that every :math:`R^* R` is a number for each block, and so is the
    block diagonal of the Laplacian.
    """

    takes_rows: ClassVar[bool] = True
    is_traceable: ClassVar[bool] = True
    has_diagonal_blocks: ClassVar[bool] = True

    head: Tensor | None = None
    tail: Tensor | None = None
    translation: Tensor | None = None

    def __post_init__(self) -> None:
        given = [m for m in (self.head, self.tail, self.translation) if m is not None]
        if self.head is None and self.tail is None:
            raise ValueError(f"{type(self).__name__} needs 'head' or 'tail' (got neither)")
        common_dtype(*given)
        if any(m.dim() != 2 or m.shape != given[0].shape for m in given):
            raise ValueError(
                "'head', 'tail' and 'translation' must all be [num_relations, d] "
                f"(got {[list(m.shape) for m in given]})"
            )

    @property
    def _some_map(self) -> Tensor:
        return self.tail if self.head is None else self.head  # type: ignore[return-value]

    @property
    def _one(self) -> Tensor:
        return self.algebra.one(self._some_map)

    def _map(self, side: Side) -> Tensor | None:
        return self.head if side == "head" else self.tail

    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        table = self._map(side)
        return x if table is None else self.algebra.multiply(take_rows(table, 0, edge_type), x)

    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        table = self._map(side)
        if table is None:
            return y
        return self.algebra.multiply(self.algebra.conjugate(take_rows(table, 0, edge_type)), y)

    def translation_of(self, edge_type: Tensor) -> Tensor | None:
        return None if self.translation is None else take_rows(self.translation, 0, edge_type)

    def diagonals(self, side: Side) -> Tensor | None:
        return self._map(side)

    def map_parameters(self, side: Side, relations: Tensor) -> Tensor:
        table = self._map(side)
        return self.algebra.one(self._some_map[relations]) if table is None else table[relations]

    def apply_map(self, x: Tensor, parameters: Tensor) -> Tensor:
        return self.algebra.multiply(parameters, x)

    def restrict_sections(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        table = self._map(side)
        if table is None:
            return x
        return self.algebra.multiply(take_rows(table, 0, edge_type).unsqueeze(1), x)

    def scale_energy(self, weight: Tensor, width: int | None = None) -> Self:
        head, tail = (self._one if m is None else m for m in (self.head, self.tail))
        root = weight.sqrt().to(head.dtype).unsqueeze(1)
        shift = None if self.translation is None else self.translation * root
        return type(self)(head * root, tail * root, shift)

    def is_injective(self, side: Side, rtol: float) -> Tensor:
        table = self._map(side)
        if table is None:
            return torch.ones_like(self._relations(), dtype=torch.bool)
        size = self._moduli(table)
        return size.amin(1) > rtol * size.amax(1)

    def _moduli(self, table: Tensor) -> Tensor:
        return self.algebra.squares(table).sqrt()

    def block_terms(self) -> tuple[Tensor, Tensor, Tensor]:
        tail, head, gap = map(self.algebra.squares, self._end_maps())
        return tail, head, gap

    def _end_maps(self) -> tuple[Tensor, Tensor, Tensor]:
        """The maps at tails and heads, and their difference, which a self-loop meets."""
        tail, head = (self._one if m is None else m for m in (self.tail, self.head))
        return tail, head, tail - head

    def end_norms(self) -> Tensor:
        return torch.cat(self.block_terms()[:2]).amax(dim=1)

    def vertex_blocks(
        self, ends: RelationIncidence, loops: RelationIncidence, columns: slice = slice(None)
    ) -> VertexBlocks:
        columns = self._check_columns(columns)
        tails, heads, loop = self.block_terms()
        squares, loop = torch.cat([tails, heads]), loop[:, columns]
        if not squares.requires_grad and all_ones(squares):
            # Unitary maps: multiples of the identity, exactly, and a column instead of a matrix.
            squares = squares.new_ones(squares.shape[0], 1)
        else:
            squares = squares[:, columns]
        entries, present = ends.sum(squares), None
        if not loops.empty:
            entries = entries + loops.sum(torch.cat([loop, torch.zeros_like(loop)]))
        maps = [m[:, columns] for m in self._end_maps()[: 2 if loops.empty else 3]]
        tiny = torch.finfo(loop.dtype).tiny
        here = [self.algebra.gather((m != 0).to(loop.dtype)) for m in maps]
        if any(
            bool(((h > 0) & (self.algebra.squares(m) < tiny)).any())
            for h, m in zip(here, maps, strict=True)
        ):
            at_tail, at_head, *at_loop = here
            present = ends.sum(torch.cat([at_tail, at_head])) > 0
            for m in at_loop:
                present |= loops.sum(torch.cat([m, torch.zeros_like(m)])) > 0
        return DiagonalBlocks(entries, present)

    def coupling(
        self, entries: CouplingEntries | TypedEntries, columns: slice = slice(None)
    ) -> Coupling:
        head, tail = self._map("head"), self._map("tail")
        coefficients = self._one if head is None else head
        if tail is not None:
            coefficients = self.algebra.multiply(self.algebra.conjugate(tail), coefficients)
        return DiagonalCoupling(
            entries, coefficients[:, self._check_columns(columns)], self.algebra
        )

    def _check_columns(self, columns: slice) -> slice:
        """The slice, which must not cut a block."""
        size, block = self._some_map.shape[1], self.algebra.block
        start, stop, step = columns.indices(size)
        if block > 1 and (step != 1 or start % block or stop % block):
            raise ValueError(
                f"the columns of {self.algebra.name} belong together in blocks of {block} (got "
                f"{start} to {stop})"
            )
        return columns


def all_ones(squares: Tensor) -> bool:
    """Whether squared moduli are one up to rounding."""
    return bool(((squares - 1).abs() <= 8 * torch.finfo(squares.dtype).eps).all())
