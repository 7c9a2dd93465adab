import torch
from torch import Tensor

from sheafprop.kernels.backend import as_real_rows, backend_of, numba_loops
from sheafprop.kernels.csr_product import CSRProduct

# Half of what a second-level cache holds at least.
_TILE_BYTES = 2**19


class TiledSum:
    r"""Rows of :math:`A X` for a few Hermitian matrices :math:`X`, such as one for each relation.

    Pieces of the matrices are treated one after another, so small that a piece of all of :math:`X`
    stays in the cache: reading whole rows would fetch :math:`X` from memory for every row of the
    result. Of real matrices on CPU the upper triangles alone are summed. No gradients.

    Args:
        product (CSRProduct): :math:`A`.
        table (Tensor): :math:`X`, ``[n, d, d]``.
    """

    def __init__(self, product: CSRProduct, table: Tensor):
        self._product, self._table = product, table
        self._tiles: list[tuple[int, int, Tensor]] | None = None
        if backend_of(table) == "numba":
            rows = _real(table)
            size, height, width = rows.shape
            fitting = _TILE_BYTES // max(1, size * rows.element_size())
            self._tiles, row = [], 0
            while row < height:
                column = 0 if table.is_complex() else row
                end = row + max(1, fitting // (width - column))
                for part in rows[:, row:end, column:].split(max(16, fitting), dim=2):
                    self._tiles.append((row, column, part.contiguous()))
                    column += part.shape[2]
                row = end

    def fill(self, first: int, out: Tensor) -> None:
        """Writes rows from ``first`` on to ``out``, which is contiguous."""
        if self._tiles is None:
            index = torch.arange(first, first + out.shape[0], device=out.device)
            out.copy_(self._product.rows(index)(self._table))
            return
        start, col, value = self._product.entries_as(out.dtype.to_real())
        entries = start[first : first + out.shape[0] + 1].numpy(), col.numpy(), value.numpy()
        target = _real(out).numpy()
        for row, column, tile in self._tiles:
            numba_loops().tile_sums(  # type: ignore[union-attr]
                *entries, tile.numpy(), row, column, target
            )


def _real(x: Tensor) -> Tensor:
    """``[n, h, w]`` as real numbers, pairs of columns for complex ones."""
    width = 2 * x.shape[2] if x.is_complex() else x.shape[2]
    return as_real_rows(x).view(*x.shape[:2], width)
