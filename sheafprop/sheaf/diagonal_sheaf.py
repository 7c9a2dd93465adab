from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.coupling import Coupling, CouplingEntries
from sheafprop.kernels.diagonal_coupling import DiagonalCoupling
from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.kernels.rows import take_rows
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

    @property
    def num_relations(self) -> int:
        return self._some_map.shape[0]

    @property
    def stalk_dim(self) -> int | None:
        return self._some_map.shape[1]

    @property
    def dtype(self) -> torch.dtype | None:
        return common_dtype(self.head, self.tail, self.translation)

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

    def restriction_map(self, relation: int, side: Side, width: int | None = None) -> Tensor:
        table = self._map(side)
        return torch.diag(torch.ones_like(self._some_map[0]) if table is None else table[relation])

    def _adjoint_table(self, y: Tensor, side: Side) -> Tensor:
        table = self._map(side)
        return y if table is None else table.conj() * y

    def end_translations(self) -> Tensor | None:
        if self.translation is None:
            return None
        return torch.cat(
            [
                self._adjoint_table(self.translation, "tail"),
                -self._adjoint_table(self.translation, "head"),
            ]
        )

    def _squares(self) -> Tensor:
        ones = torch.ones_like(self._some_map.real)
        return torch.cat([ones if m is None else _square(m) for m in (self.tail, self.head)])

    def end_norms(self) -> Tensor:
        return self._squares().amax(dim=1)

    def vertex_blocks(self, ends: RelationIncidence, loops: RelationIncidence) -> VertexBlocks:
        squares = self._squares()
        ones = torch.ones_like(squares[: self.num_relations])
        if not squares.requires_grad and _all_ones(squares):
            # Unitary maps: multiples of the identity, exactly, and a column instead of a matrix.
            squares = squares.new_ones(squares.shape[0], 1)
        present = None
        maps = [m for m in (self.tail, self.head) if m is not None]
        if any(bool(((m != 0) & (_square(m) < torch.finfo(m.dtype).tiny)).any()) for m in maps):
            nonzero = torch.cat([ones if m is None else m != 0 for m in (self.tail, self.head)])
            present = ends.sum(nonzero.to(squares.dtype)) > 0
        if loops.empty:
            return DiagonalBlocks(ends.sum(squares), present)
        one = torch.ones_like(self._some_map)
        gap = (one if self.tail is None else self.tail) - (one if self.head is None else self.head)
        loop = _square(gap)
        return DiagonalBlocks(
            ends.sum(squares) + loops.sum(torch.cat([loop, torch.zeros_like(loop)])), present
        )

    def coupling(self, entries: CouplingEntries) -> Coupling:
        forward = self._map("head")
        coefficients = self._adjoint_table(
            torch.ones_like(self._some_map) if forward is None else forward, "tail"
        )
        return DiagonalCoupling(entries, coefficients)


def _square(m: Tensor) -> Tensor:
    return (m * m.conj()).real


def _all_ones(squares: Tensor) -> bool:
    return bool(((squares - 1).abs() <= 8 * torch.finfo(squares.dtype).eps).all())


torch.export.register_dataclass(DiagonalSheaf)
