import torch
from torch import Tensor

from sheafprop.kernels.backend import as_real_rows, backend_of, numba_loops
from sheafprop.kernels.csr_product import CSRProduct

# Half of what a second-level cache holds at least.
_TILE_BYTES = 2**19


class TiledSum:
    r"""Rows of :math:`A X` for a few wide rows :math:`X`, such as one matrix for each relation.

    The columns are treated one tile after another, laid out so that a tile of all of :math:`X`
    stays in the cache: reading whole rows would fetch :math:`X` from memory for every row of the
    result. No gradients.

    Args:
        product (CSRProduct): :math:`A`.
        table (Tensor): :math:`X`, of any trailing shape.
    """

    def __init__(self, product: CSRProduct, table: Tensor):
        self._product, self._table = product, table
        self._tiles: Tensor | None = None
        if backend_of(table) == "numba":
            rows = as_real_rows(table)
            size, width = rows.shape
            tile = max(16, _TILE_BYTES // max(1, size * rows.element_size()) // 16 * 16)
            count = -(-width // tile) if width > 0 else 0
            padded = torch.nn.functional.pad(rows, (0, count * tile - width))
            self._tiles = padded.view(size, count, tile).transpose(0, 1).contiguous()

    def fill(self, first: int, out: Tensor) -> None:
        """Writes rows from ``first`` on to ``out``, which is contiguous."""
        if self._tiles is None:
            index = torch.arange(first, first + out.shape[0], device=out.device)
            out.copy_(self._product.rows(index)(self._table))
            return
        start, col, value = self._product.entries_as(self._tiles.dtype)
        numba_loops().tiled_rows(  # type: ignore[union-attr]
            start[first : first + out.shape[0] + 1].numpy(),
            col.numpy(),
            value.numpy(),
            self._tiles.numpy(),
            as_real_rows(out).numpy(),
        )
