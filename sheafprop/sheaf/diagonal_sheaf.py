from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.pairwise_squares import near_squares, scaled_squares
from sheafprop.sheaf.relation_sheaf import Side
from sheafprop.sheaf.table_sheaf import TableSheaf, all_ones


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalSheaf(TableSheaf):
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

    def matrices(
        self, side: Side, relations: Tensor | None = None, width: int | None = None
    ) -> Tensor:
        table = self._map(side)
        table = self._one if table is None else table
        return torch.diag_embed(table if relations is None else table[relations])

    def _moduli(self, table: Tensor) -> Tensor:
        return table.abs()

    def pairwise_energy(
        self, queries: Tensor, candidates: Tensor, edge_type: Tensor, side: Side, **options: Any
    ) -> Tensor:
        target, table = self.targets(queries, edge_type, side), self._map(side)
        maps = None if table is None else table[edge_type]
        if maps is None or all_ones(maps.abs()):
            target = target if maps is None else target * maps.conj()
            return near_squares(candidates, target, **options)
        return scaled_squares(candidates, maps, target, options.get("out"))


torch.export.register_dataclass(DiagonalSheaf)
