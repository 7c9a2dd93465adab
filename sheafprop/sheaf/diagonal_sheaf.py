from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.coupling import Coupling, CouplingEntries
from sheafprop.kernels.diagonal_coupling import DiagonalCoupling
from sheafprop.kernels.pairwise_squares import near_squares, scaled_squares
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.kernels.rows import take_rows
from sheafprop.kernels.typed_entries import TypedEntries
from sheafprop.sheaf.diagonal_blocks import DiagonalBlocks
from sheafprop.sheaf.relation_sheaf import RelationSheaf, Side, common_dtype
from sheafprop.sheaf.vertex_blocks import VertexBlocks


@dataclass(frozen=True, eq=False)
class DiagonalSheaf(RelationSheaf):
    r"""Both restriction maps are diagonal: :math:`R_h = \mathrm{diag}(a_r)`,
    :math:`R_t = \mathrm{diag}(c_r)`, real or complex.

    The sheaf of RotatE (:math:`a_r = e^{i\theta_r}`, :math:`R_t = I`), PairRE and LineaRE.

    Args:
        head (Tensor, optional): :math:`a_r`, ``[R, d]``; None for the identity.
        tail (Tensor, optional): :math:`c_r`, ``[R, d]``; None for the identity.
        translation (Tensor, optional): :math:`b_r`, ``[R, d]``; None for zero.

    Raises:
        ValueError: If both maps are None, the shapes differ, or integers are given.
    """

    independent_columns: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True
    is_traceable: ClassVar[bool] = True

    head: Tensor | None = None
    tail: Tensor | None = None
    translation: Tensor | None = None

    def __post_init__(self) -> None:
        given = [m for m in (self.head, self.tail, self.translation) if m is not None]
        if self.head is None and self.tail is None:
            raise ValueError("DiagonalSheaf needs 'head' or 'tail' (got neither)")
        common_dtype(*given)
        if any(m.dim() != 2 or m.shape != given[0].shape for m in given):
            raise ValueError(
                "'head', 'tail' and 'translation' must all be [num_relations, d] "
                f"(got {[list(m.shape) for m in given]})"
            )

    @property
    def _some_map(self) -> Tensor:
        return self.tail if self.head is None else self.head  # type: ignore[return-value]

    def _map(self, side: Side) -> Tensor | None:
        return self.head if side == "head" else self.tail

    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        table = self._map(side)
        return x if table is None else x * take_rows(table, 0, edge_type)

    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        table = self._map(side)
        return y if table is None else y * take_rows(table, 0, edge_type).conj()

    def translation_of(self, edge_type: Tensor) -> Tensor | None:
        return None if self.translation is None else take_rows(self.translation, 0, edge_type)

    def matrices(
        self, side: Side, relations: Tensor | None = None, width: int | None = None
    ) -> Tensor:
        table = self._map(side)
        table = torch.ones_like(self._some_map) if table is None else table
        return torch.diag_embed(table if relations is None else table[relations])

    def diagonals(self, side: Side) -> Tensor | None:
        return self._map(side)

    def map_parameters(self, side: Side, relations: Tensor) -> Tensor:
        table = self._map(side)
        return torch.ones_like(self._some_map[relations]) if table is None else table[relations]

    def apply_map(self, x: Tensor, parameters: Tensor) -> Tensor:
        return x * parameters

    def restrict_sections(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        table = self._map(side)
        return x if table is None else x * take_rows(table, 0, edge_type).unsqueeze(1)

    def scale_energy(self, weight: Tensor, width: int | None = None) -> "DiagonalSheaf":
        one = torch.ones_like(self._some_map)
        head, tail = (one if m is None else m for m in (self.head, self.tail))
        root = weight.sqrt().to(one.dtype).unsqueeze(1)
        shift = None if self.translation is None else self.translation * root
        return DiagonalSheaf(head * root, tail * root, shift)

    def is_injective(self, side: Side, rtol: float) -> Tensor:
        table = self._map(side)
        if table is None:
            return torch.ones_like(self._relations(), dtype=torch.bool)
        size = table.abs()
        return size.amin(1) > rtol * size.amax(1)

    def _adjoint_table(self, y: Tensor, side: Side) -> Tensor:
        table = self._map(side)
        return y if table is None else table.conj() * y

    def block_terms(self) -> tuple[Tensor, Tensor, Tensor]:
        tail, head, gap = self._end_maps()
        return _square(tail), _square(head), _square(gap)

    def _end_maps(self) -> tuple[Tensor, Tensor, Tensor]:
        """The maps at tails and heads, and their difference, which a self-loop meets."""
        one = torch.ones_like(self._some_map)
        tail, head = (one if m is None else m for m in (self.tail, self.head))
        return tail, head, tail - head

    def end_norms(self) -> Tensor:
        return torch.cat(self.block_terms()[:2]).amax(dim=1)

    def vertex_blocks(
        self, ends: RelationIncidence, loops: RelationIncidence, columns: slice = slice(None)
    ) -> VertexBlocks:
        tails, heads, loop = self.block_terms()
        squares, loop = torch.cat([tails, heads]), loop[:, columns]
        if not squares.requires_grad and _all_ones(squares):
            # Unitary maps: multiples of the identity, exactly, and a column instead of a matrix.
            squares = squares.new_ones(squares.shape[0], 1)
        else:
            squares = squares[:, columns]
        entries, present = ends.sum(squares), None
        if not loops.empty:
            entries = entries + loops.sum(torch.cat([loop, torch.zeros_like(loop)]))
        maps = [m[:, columns] for m in self._end_maps()[: 2 if loops.empty else 3]]
        if any(bool(((m != 0) & (_square(m) < torch.finfo(m.dtype).tiny)).any()) for m in maps):
            at_tail, at_head, *at_loop = ((m != 0).to(loop.dtype) for m in maps)
            present = ends.sum(torch.cat([at_tail, at_head])) > 0
            for m in at_loop:
                present |= loops.sum(torch.cat([m, torch.zeros_like(m)])) > 0
        return DiagonalBlocks(entries, present)

    def coupling(
        self, entries: CouplingEntries | TypedEntries, columns: slice = slice(None)
    ) -> Coupling:
        forward = self._map("head")
        coefficients = self._adjoint_table(
            torch.ones_like(self._some_map) if forward is None else forward, "tail"
        )
        return DiagonalCoupling(entries, coefficients[:, columns])

    def pairwise_energy(
        self,
        queries: Tensor,
        candidates: Tensor,
        edge_type: Tensor,
        side: Side,
        *,
        lengths: Callable[[], Tensor] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        target, table = self.targets(queries, edge_type, side), self._map(side)
        maps = None if table is None else table[edge_type]
        if maps is None or _all_ones(maps.abs()):
            target = target if maps is None else target * maps.conj()
            return near_squares(candidates, target, lengths, out)
        return scaled_squares(candidates, maps, target, out)


def _square(m: Tensor) -> Tensor:
    return (m * m.conj()).real


def _all_ones(squares: Tensor) -> bool:
    return bool(((squares - 1).abs() <= 8 * torch.finfo(squares.dtype).eps).all())


torch.export.register_dataclass(DiagonalSheaf)
