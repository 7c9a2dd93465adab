"""A constant sparse matrix times a block of features, differentiable in the features."""

import warnings
from typing import Any

import torch
from torch import Tensor


class CSRProduct:
    r"""The linear map :math:`X \mapsto A X` for a fixed real sparse :math:`A`.

    Entries that name the same place are added once, when the matrix is built, so parallel edges
    cost nothing later. Works on real and complex features of any trailing shape; the gradient with
    respect to the features is :math:`A^\top G`, itself differentiable.

    Args:
        row, col (Tensor): Places of the entries, int64 ``[nnz]``.
        value (Tensor): Real entries ``[nnz]``.
        num_rows, num_cols (int): Shape of :math:`A`.
    """

    def __init__(self, row: Tensor, col: Tensor, value: Tensor, num_rows: int, num_cols: int):
        self.num_rows, self.num_cols = num_rows, num_cols
        self._matrix = _csr(row, col, value, num_rows, num_cols)
        self._transposed: Tensor | None = None

    @property
    def nnz(self) -> int:
        return int(self._matrix.values().numel())

    def matrix(self, *, transposed: bool = False) -> Tensor:
        if not transposed:
            return self._matrix
        if self._transposed is None:
            crow, col = self._matrix.crow_indices(), self._matrix.col_indices()
            row = torch.repeat_interleave(
                torch.arange(self.num_rows, device=col.device), crow[1:] - crow[:-1]
            )
            self._transposed = _csr(col, row, self._matrix.values(), self.num_cols, self.num_rows)
        return self._transposed

    def __call__(self, x: Tensor) -> Tensor:
        return _SparseMatmul.apply(x, self, False)


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, product: CSRProduct, transposed: bool) -> Tensor:
        ctx.product, ctx.transposed = product, transposed
        return _multiply(product.matrix(transposed=transposed), x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return _SparseMatmul.apply(grad, ctx.product, not ctx.transposed), None, None


def _multiply(matrix: Tensor, x: Tensor) -> Tensor:
    trailing = x.shape[1:]
    # The entries are real, so a complex column is two real ones.
    real = torch.view_as_real(x.contiguous()) if x.is_complex() else x.contiguous()
    flat = real.reshape(x.shape[0], -1)
    if flat.numel() == 0 or matrix.values().numel() == 0:
        out = flat.new_zeros(matrix.shape[0], flat.shape[1])
    else:
        out = matrix.to(flat.dtype) @ flat
    if x.is_complex():
        return torch.view_as_complex(out.reshape(matrix.shape[0], *trailing, 2))
    return out.reshape(matrix.shape[0], *trailing)


def _csr(row: Tensor, col: Tensor, value: Tensor, num_rows: int, num_cols: int) -> Tensor:
    key = row * num_cols + col
    order = torch.argsort(key, stable=True)
    key, value = key[order], value[order]
    unique, inverse = torch.unique_consecutive(key, return_inverse=True)
    merged = value.new_zeros(unique.numel()).index_add_(0, inverse, value)
    rows = torch.div(unique, max(num_cols, 1), rounding_mode="floor")
    counts = torch.bincount(rows, minlength=num_rows)
    crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    with warnings.catch_warnings():
        # "Sparse CSR support is in beta": nothing a user could act on.
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            crow,
            unique - rows * num_cols,
            merged,
            size=(num_rows, num_cols),
            check_invariants=False,
        )
