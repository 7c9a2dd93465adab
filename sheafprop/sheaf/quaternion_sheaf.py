from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sheafprop.kernels.algebra import QUATERNIONS, Algebra
from sheafprop.kernels.pairwise_squares import near_squares, scaled_squares
from sheafprop.sheaf.relation_sheaf import Side
from sheafprop.sheaf.table_sheaf import TableSheaf, all_ones


@dataclass(frozen=True, eq=False, repr=False)
class QuaternionSheaf(TableSheaf):
    r"""Both restriction maps are left multiplications by quaternions, :math:`R_h x = a_r x` and
    :math:`R_t x = c_r x`. Maps of different relations do not commute.

    A stalk of :math:`d` real numbers holds :math:`d / 4` quaternions
    :math:`x = x_0 + x_1 i + x_2 j + x_3 k`, each in four adjacent columns. A map rotates and scales
    the four numbers of each quaternion: it is orthogonal for unit quaternions, and injective unless
    one is zero. As :math:`\bar{a} a = |a|^2`, the block diagonal of the Laplacian is diagonal.

    The sheaf of SU2E (:math:`|a_r| = 1`, :math:`R_t = I`).

    Args:
        head (Tensor, optional): :math:`a_r`, real ``[R, d]``; None for the identity.
        tail (Tensor, optional): :math:`c_r`, real ``[R, d]``; None for the identity.
        translation (Tensor, optional): :math:`b_r`, real ``[R, d]``; None for zero.

    Raises:
        ValueError: If both maps are None, the shapes differ, the width is not a multiple of four,
            or the tensors are not real.
    """

    algebra: ClassVar[Algebra] = QUATERNIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype is not None and self.dtype.is_complex:
            raise ValueError(f"quaternions are four real numbers each (got {self.dtype})")
        if self._some_map.shape[1] % 4:
            raise ValueError(
                "quaternions take four columns each: the width must be a multiple of four "
                f"(got {self._some_map.shape[1]})"
            )

    def promote(self, dtype: torch.dtype) -> Self:
        # Maps stay real, whatever they act on; compilers do not know dtype.to_real.
        return super().promote(torch.zeros((), dtype=dtype).real.dtype)

    def pairwise_energy(
        self, queries: Tensor, candidates: Tensor, edge_type: Tensor, side: Side, **options: Any
    ) -> Tensor:
        target, table = self.targets(queries, edge_type, side), self._map(side)
        if table is None:
            return near_squares(candidates, target, **options)
        # |c x - t| = | |c| x - u t| for the conjugate u of the unit quaternion of c.
        maps = table[edge_type]
        moduli = self._moduli(maps)
        unit = torch.where(moduli > 0, maps / moduli, self.algebra.one(maps))
        target = self.algebra.multiply(self.algebra.conjugate(unit), target)
        if all_ones(moduli):
            return near_squares(candidates, target, **options)
        return scaled_squares(candidates, moduli, target, options.get("out"))


torch.export.register_dataclass(QuaternionSheaf)
