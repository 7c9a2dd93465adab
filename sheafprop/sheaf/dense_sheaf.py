from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.coupling import Coupling, CouplingEntries, EmptyCoupling
from sheafprop.kernels.dense_coupling import DenseCoupling
from sheafprop.kernels.memory import announce
from sheafprop.kernels.relation_incidence import RelationIncidence, equal_rows, joint_product
from sheafprop.kernels.rows import take_rows
from sheafprop.sheaf.dense_blocks import DenseBlocks
from sheafprop.sheaf.relation_sheaf import RelationSheaf, Side, common_dtype
from sheafprop.sheaf.vertex_blocks import VertexBlocks


@dataclass(frozen=True, eq=False)
class DenseSheaf(RelationSheaf):
    r"""Both restriction maps are dense matrices: :math:`R_h, R_t \in K^{k \times d}`.

    The sheaf of TransR (one shared map per relation, with translation), SE (a pair of maps) and
    STransE. Pass the same tensor twice for a shared map.

    Args:
        head (Tensor): :math:`R_h`, ``[R, k, d]``.
        tail (Tensor): :math:`R_t`, ``[R, k, d]``.
        translation (Tensor, optional): :math:`b_r`, ``[R, k]``; None for zero.

    Raises:
        ValueError: If the shapes do not fit each other, or integers are given.
    """

    head: Tensor
    tail: Tensor
    translation: Tensor | None = None

    def __post_init__(self) -> None:
        if self.head is None or self.tail is None:
            raise ValueError(
                "DenseSheaf needs 'head' and 'tail': pass the same tensor twice for a shared map"
            )
        common_dtype(self.head, self.tail, self.translation)
        if self.head.dim() != 3 or self.head.shape != self.tail.shape:
            raise ValueError(
                "'head' and 'tail' must both be [num_relations, k, d] "
                f"(got {list(self.head.shape)} and {list(self.tail.shape)})"
            )
        if self.translation is not None and self.translation.shape != self.head.shape[:2]:
            raise ValueError(
                f"'translation' must be {list(self.head.shape[:2])} "
                f"(got {list(self.translation.shape)})"
            )

    @property
    def num_relations(self) -> int:
        return self.head.shape[0]

    @property
    def stalk_dim(self) -> int | None:
        return self.head.shape[2]

    @property
    def dtype(self) -> torch.dtype | None:
        return common_dtype(self.head, self.tail, self.translation)

    @property
    def independent_columns(self) -> bool:
        return False

    def _map(self, side: Side) -> Tensor:
        return self.head if side == "head" else self.tail

    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return _by_relation(x, edge_type, self._map(side))

    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return _by_relation(y, edge_type, self._map(side).mH)

    def translation_of(self, edge_type: Tensor) -> Tensor | None:
        return None if self.translation is None else take_rows(self.translation, 0, edge_type)

    def restriction_map(self, relation: int, side: Side, width: int | None = None) -> Tensor:
        return self._map(side)[relation]

    def end_translations(self) -> Tensor | None:
        if self.translation is None:
            return None
        column = self.translation.unsqueeze(-1)
        return torch.cat([self.tail.mH @ column, -(self.head.mH @ column)]).squeeze(-1)

    def end_norms(self) -> Tensor:
        return torch.linalg.matrix_norm(torch.cat([self.tail, self.head]), ord=2) ** 2

    def vertex_blocks(self, ends: RelationIncidence, loops: RelationIncidence) -> VertexBlocks:
        first, kind = equal_rows(ends, loops)
        if first.numel() < kind.numel():
            ends, loops = ends.of(first), loops.of(first)
        product, column = joint_product(ends, loops)
        size, d = self.num_relations, self.head.shape[2]
        # Squares have half the digits: of single precision a map's weakest directions would keep
        # none.
        double = torch.promote_types(self.head.dtype, torch.float64)
        announce(column.numel() * d * d * double.itemsize, "squares of the maps")
        tails, heads, looped = (
            column[(column >= i * size) & (column < (i + 1) * size)] - i * size for i in range(3)
        )
        squares = [take_rows(self.tail, 0, tails), take_rows(self.head, 0, heads)]
        if looped.numel():
            tail, head = (take_rows(m, 0, looped).to(double) for m in (self.tail, self.head))
            squares.append(tail - head)
        maps = torch.cat([m.to(double) for m in squares])
        table = maps.mH @ maps
        tiny = torch.finfo(double).tiny
        gone = (_largest(table) < tiny) & (_largest(maps) > 0)
        vanished = gone if bool(gone.any()) else None
        return DenseBlocks(product, table, first, kind, self.head.dtype, vanished)

    def coupling(self, entries: CouplingEntries) -> Coupling:
        if entries.dst.numel() == 0 or 0 in self.head.shape[1:]:
            return EmptyCoupling(entries.num_dst)
        return DenseCoupling(entries, self.head, self.tail)


def _largest(matrices: Tensor) -> Tensor:
    sizes = matrices.detach().abs().flatten(1)
    return sizes.amax(dim=1) if sizes.numel() else sizes.new_zeros(len(sizes))


def _by_relation(x: Tensor, edge_type: Tensor, maps: Tensor) -> Tensor:
    """Applies ``maps[edge_type]`` to rows ``[..., E, d]``, one matrix product per relation."""
    dtype = torch.promote_types(x.dtype, maps.dtype)
    x, maps = x.to(dtype), maps.to(dtype)
    order = torch.argsort(edge_type, stable=True)
    present, counts = torch.unique_consecutive(edge_type[order], return_counts=True)
    parts = torch.split(x.index_select(-2, order), counts.tolist(), dim=-2)
    mapped = [part @ maps[r].mT for r, part in zip(present.tolist(), parts, strict=True)]
    if not mapped:
        return x.new_zeros(*x.shape[:-1], maps.shape[1])
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    return torch.cat(mapped, dim=-2).index_select(-2, inverse)


torch.export.register_dataclass(DenseSheaf)
