from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sheafprop.kernels.mapped_rows import mapped_rows
from sheafprop.kernels.rows import take_rows
from sheafprop.sheaf.relation_sheaf import RelationSheaf, Side, common_dtype


@dataclass(frozen=True, eq=False, repr=False)
class DenseSheaf(RelationSheaf):
    r"""Both restriction maps are dense matrices: :math:`R_h, R_t \in K^{k \times d}`.

    The sheaf of TransR (one shared map per relation, with translation), SE (a pair of maps) and
    STransE. Pass the same tensor twice for a shared map.

    The relative rounding error of a step with ``normalization="block"`` is about
    :math:`\epsilon \kappa(D_v)`, the machine epsilon times the condition number of the block of the
    vertex. Ill-conditioned blocks require double precision. The error of each coordinate of a
    :class:`DiagonalSheaf` is about :math:`\epsilon`.

    Args:
        head (Tensor): :math:`R_h`, ``[R, k, d]``.
        tail (Tensor): :math:`R_t`, ``[R, k, d]``.
        translation (Tensor, optional): :math:`b_r`, ``[R, k]``; None for zero.

    Raises:
        ValueError: If the shapes do not match, or integers are given.
    """

    is_traceable: ClassVar[bool] = True

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

    def _map(self, side: Side) -> Tensor:
        return self.head if side == "head" else self.tail

    def restrict(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return _by_relation(x, edge_type, self._map(side))

    def restrict_adjoint(self, y: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        return _by_relation(y, edge_type, self._map(side).mH)

    def translation_of(self, edge_type: Tensor) -> Tensor | None:
        return None if self.translation is None else take_rows(self.translation, 0, edge_type)

    def matrices(
        self, side: Side, relations: Tensor | None = None, width: int | None = None
    ) -> Tensor:
        return self._map(side) if relations is None else self._map(side)[relations]

    @property
    def shares_maps(self) -> bool:
        return self.head is self.tail

    def restrict_sections(self, x: Tensor, edge_type: Tensor, side: Side) -> Tensor:
        if x.is_complex() or self._map(side).dtype != x.dtype:
            return super().restrict_sections(x, edge_type, side)
        return mapped_rows(x, self._map(side), edge_type)

    def scale_energy(self, weight: Tensor, width: int | None = None) -> Self:
        root = weight.sqrt()
        return self.map_tensors(
            lambda tensor: tensor * root.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1))
        )

    def end_translations(self) -> Tensor | None:
        if self.translation is None:
            return None
        column = self.translation.unsqueeze(-1)
        return torch.cat([self.tail.mH @ column, -(self.head.mH @ column)]).squeeze(-1)


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
