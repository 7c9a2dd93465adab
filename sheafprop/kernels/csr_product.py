"""A constant sparse matrix times a block of features, differentiable in the features."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sheafprop.kernels.backend import (
    as_array,
    as_real_rows,
    backend_of,
    compact,
    entries_ahead,
    is_traced,
    leave_inference_mode,
    numba_loops,
    run_starts,
    scalars,
    sort_rows,
    triton_loops,
)
from sheafprop.kernels.memory import empty
from sheafprop.kernels.rows import as_pairs
from sheafprop.kernels.threads import run_rows

# Where torch multiplies by sparse matrices; elsewhere rows are gathered and added.
_SPARSE_DEVICES = ("cpu", "cuda")
# Bytes of gathered rows that are held at once.
_BLOCK_BYTES = 64 * 2**20


class Terms(NamedTuple):
    r"""What stands beside the messages in :math:`(f_0 + f_1 \, o) \, x + f_2 \, g \, (A x + c)`.

    Args:
        factors (tuple[float, float, float]): :math:`f`.
        own (Tensor, optional): Real :math:`o`, ``[n, 1]`` or ``[n, d]``; None for ones.
        gain (Tensor, optional): Real :math:`g`, likewise.
        constant (Tensor, optional): :math:`c`, ``[n, s, d]`` or ``[n, 1, d]``; None for zero.
        out (Tensor, optional): Where to put the result, if nothing needs gradients.
    """

    factors: tuple[float, float, float] = (0.0, 0.0, 1.0)
    own: Tensor | None = None
    gain: Tensor | None = None
    constant: Tensor | None = None
    out: Tensor | None = None

    def as_rows(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Own, gain and constant as compiled loops take them, for features ``x`` in real rows."""
        ones, dtype = rows.new_ones(1, 1), x.dtype.to_real()
        return (
            ones if self.own is None else self.own.detach().to(dtype),
            ones if self.gain is None else self.gain.detach().to(dtype),
            rows.new_empty(0, 1)
            if self.constant is None
            else as_real_rows(self.constant.to(x.dtype)),
        )


#: The messages alone.
MESSAGES = Terms()


class CSRProduct:
    r"""The linear map :math:`X \mapsto A X` for a fixed real sparse :math:`A`.

    Entries that name the same place are added once, when the matrix is built, so parallel edges
    cost nothing later. Works on real and complex features of any trailing shape; the gradient with
    respect to the features is :math:`A^\top G`, itself differentiable.

    Args:
        row, col (Tensor): Places of the entries, int64 ``[nnz]``.
        value (Tensor): Real entries ``[nnz]``.
        num_rows, num_cols (int): Shape of :math:`A`.
        symmetric (bool): :math:`A` is its own transpose, which then needs no memory.
        merge (bool): Add up entries of one place; not worth a pass for a single product.
    """

    def __init__(
        self,
        row: Tensor,
        col: Tensor,
        value: Tensor,
        num_rows: int,
        num_cols: int,
        *,
        symmetric: bool = False,
        merge: bool = True,
    ):
        self.num_rows, self.num_cols = num_rows, num_cols
        self._value: Tensor | None
        self._start, self._col, self._value = _sort_entries(
            row, col, value, num_rows, num_cols, merge=merge
        )
        self._transposed: CSRProduct | None = self if symmetric else None
        self._values: dict[torch.dtype, Tensor] = {}

    @classmethod
    def of_rows(
        cls,
        start: Tensor,
        col: Tensor,
        value: Tensor | None,
        num_cols: int,
        *,
        symmetric: bool = False,
    ) -> "CSRProduct":
        """The product of entries that lie in rows already.

        Args:
            start (Tensor): First entry of each row and their number, int64 ``[num_rows + 1]``.
            col (Tensor): Columns, in small integers.
            value (Tensor, optional): Entries, as small integers too; None for ones.
            num_cols (int): Number of columns.
            symmetric (bool): As above.
        """
        product = object.__new__(cls)
        product.num_rows, product.num_cols = start.numel() - 1, num_cols
        product._start, product._col, product._value = start, col, value
        product._transposed = product if symmetric else None
        product._values = {}
        return product

    @property
    def nnz(self) -> int:
        return self._col.numel()

    def rows(self, index: Tensor) -> "CSRProduct":
        """The product that gives some of the rows."""
        begin = self._start[index]
        counts = self._start[index + 1] - begin
        start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        entries = torch.arange(int(start[-1]), device=index.device)
        entries += torch.repeat_interleave(begin - start[:-1], counts)
        part = object.__new__(CSRProduct)
        part.num_rows, part.num_cols = index.numel(), self.num_cols
        part._start, part._col = start, self._col[entries]
        part._value = None if self._value is None else self._value[entries]
        part._transposed, part._values = None, {}
        return part

    def entries_as(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """First entry of each row ``[num_rows + 1]``, columns, and values in a real number type."""
        return self._start, self._col, self._value_as(dtype)

    def transpose(self) -> "CSRProduct":
        if self._transposed is None:
            with leave_inference_mode():
                self._transposed = CSRProduct(
                    self._col.long(), self._row(), self._numbers(), self.num_cols, self.num_rows
                )
            self._transposed._transposed = self
        return self._transposed

    def matrix(self) -> Tensor:
        """The matrix as torch holds it, ``torch.sparse_csr``."""
        with warnings.catch_warnings():
            # "Sparse CSR support is in beta": nothing a user could act on.
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(
                self._start,
                self._col.long(),
                self._numbers(),
                size=(self.num_rows, self.num_cols),
                check_invariants=False,
            )

    def __call__(self, x: Tensor) -> Tensor:
        if is_traced(x):
            return _gathered_product(self, x)
        if torch.is_grad_enabled() and x.requires_grad:
            return _SparseMatmul.apply(x, self)
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        return _torch_product(self, x) if backend_of(x) == "torch" else self.combine(x)

    def combine(
        self, x: Tensor, terms: Terms = MESSAGES, some: tuple[int, int] | None = None
    ) -> Tensor:
        """What :meth:`Coupling.combine` says, by a compiled loop and without gradients.

        ``own`` and ``gain`` are ``[n, 1]``; ``some`` are the rows of ``out`` to fill, if not all.
        """
        rows, dtype = as_real_rows(x), x.dtype.to_real()
        out = empty((self.num_rows, *x.shape[1:]), x) if terms.out is None else terms.out
        if out.numel() == 0 or rows.shape[0] == 0:
            # No sources: a matrix without columns.
            return out.zero_()
        target = as_real_rows(out)
        arguments = (
            self._start,
            self._col,
            self._value_as(dtype) if backend_of(x) == "triton" else self._value_of_loop(dtype),
            rows,
            *terms.as_rows(x, rows),
        )
        if backend_of(x) == "triton":
            triton_loops().csr_rows(*arguments, terms.factors, target)  # type: ignore[union-attr]
            return out
        ahead = entries_ahead(rows.shape[1] * rows.element_size())
        run_rows(
            numba_loops().csr_rows,  # type: ignore[union-attr]
            (*map(as_array, arguments), scalars(dtype, *terms.factors), ahead, target.numpy()),
            self._start.numpy(),
            rows.shape[1],
            some,
        )
        return out

    def _value_as(self, dtype: torch.dtype) -> Tensor:
        if self._value is not None and self._value.dtype == dtype:
            return self._value
        if dtype not in self._values:
            with leave_inference_mode():
                self._values[dtype] = (
                    torch.ones(self.nnz, dtype=dtype, device=self._col.device)
                    if self._value is None
                    else self._value.to(dtype)
                )
        return self._values[dtype]

    def _value_of_loop(self, dtype: torch.dtype) -> Tensor | None:
        """Values as compiled loops take them: small integers, and None for ones, as they are."""
        if self._value is None or self._value.dtype == torch.uint8:
            return self._value
        return self._value_as(dtype)

    def _numbers(self) -> Tensor:
        """Values in floating point."""
        if self._value is not None and self._value.is_floating_point():
            return self._value
        return self._value_as(torch.float32)

    def _row(self) -> Tensor:
        counts = self._start[1:] - self._start[:-1]
        return torch.repeat_interleave(
            torch.arange(self.num_rows, device=counts.device), counts, output_size=self.nnz
        )


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, product: CSRProduct) -> Tensor:
        ctx.product = product
        return product._product(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _SparseMatmul.apply(grad, ctx.product.transpose()), None


def _torch_product(product: CSRProduct, x: Tensor) -> Tensor:
    if x.device.type not in _SPARSE_DEVICES:
        return _gathered_product(product, x)
    real = as_real_rows(x)
    if real.numel() == 0 or product.nnz == 0:
        return x.new_zeros(product.num_rows, *x.shape[1:])
    # Gradients may be asked for under autocast, in whose types there is no such product.
    with torch.autocast(x.device.type, enabled=False):
        out = product.matrix().to(real.dtype) @ real
    # The entries are real, so a complex column is two real ones.
    if x.is_complex():
        return torch.view_as_complex(out.reshape(product.num_rows, *x.shape[1:], 2))
    return out.reshape(product.num_rows, *x.shape[1:])


def _gathered_product(product: CSRProduct, x: Tensor) -> Tensor:
    """The product in real operations that every tracer, transformation and device knows."""
    if x.is_complex():
        return torch.view_as_complex(_gathered_product(product, as_pairs(x)))
    row, col = product._row(), product._col.long()
    value = product._numbers().to(x.dtype).view(-1, *[1] * (x.dim() - 1))
    out = x.new_zeros(product.num_rows, *x.shape[1:])
    block = max(1, _BLOCK_BYTES // max(1, x[:1].numel() * x.element_size()))
    for start in range(0, product.nnz, block):
        part = slice(start, start + block)
        out = out.index_add(0, row[part], x.index_select(0, col[part]) * value[part])
    return out


def _sort_entries(
    row: Tensor, col: Tensor, value: Tensor, num_rows: int, num_cols: int, *, merge: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Entries sorted by row and column, equal places added up if asked: starts, columns, values."""
    equal = False
    if value.numel() > 0:
        least, greatest = torch.aminmax(value)
        equal = least.item() == greatest.item()
    (row, col), moved = sort_rows([(row, num_rows), (col, num_cols)], None if equal else value)
    values = value.clone() if moved is None else moved
    start, columns = run_starts(row, num_rows), compact(col, num_cols)
    if not merge:
        return start, columns, values
    loops = numba_loops() if col.device.type == "cpu" else None
    if loops is not None:
        merged = loops.merge_entries(start.numpy(), columns.numpy(), values.numpy())
        size = int(merged[-1])
        if size < columns.numel():
            columns, values = columns[:size].clone(), values[:size].clone()
        return torch.from_numpy(merged), columns, values
    places, inverse = torch.unique_consecutive(torch.stack([row, col]), dim=1, return_inverse=True)
    values = values.new_zeros(places.shape[1]).index_add_(0, inverse, values)
    return run_starts(places[0], num_rows), compact(places[1], num_cols), values


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
