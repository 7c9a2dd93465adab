"""Hermitian matrices, one for each vertex or kind of vertex: products, inverses, norms."""

import math

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of, numba_loops
from sheafprop.kernels.coupling import needs_gradient
from sheafprop.kernels.memory import empty
from sheafprop.kernels.rows import take_rows
from sheafprop.kernels.threads import run_rows

# Larger blocks are halved: up to here the compiled loop keeps up with matrix products.
_LOOP_SIZE = 128


def multiply_blocks(blocks: Tensor, kind: Tensor, x: Tensor) -> Tensor:
    """Multiplies features ``[n, s, d]`` by the Hermitian blocks ``[m, d, d]`` that ``kind [n]``
    picks.

    A matrix is read once for each vertex, whatever the number of sections; the loop reads it in the
    order of memory, which batched matrix products do not.
    """
    fits = backend_of(x) == "numba" and x.dtype == blocks.dtype and not x.is_complex()
    if not fits or needs_gradient(blocks, x):
        return x @ take_rows(blocks, 0, kind).mT
    x = x.detach().contiguous()
    out = empty(tuple(x.shape), x)
    n, d = kind.numel(), blocks.shape[-1]
    run_rows(
        numba_loops().symmetric_blocks,  # type: ignore[union-attr]
        (blocks.detach().contiguous().numpy(), kind.numpy(), x.numpy(), out.numpy()),
        np.arange(n + 1) * d,
        x.shape[1] * d,
    )
    return out


def definite_inverses(
    blocks: Tensor, out: Tensor | None = None, spare: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Inverses of the positive definite ones among Hermitian blocks ``[m, d, d]``, on one thread.

    A compiled loop eliminates a real block in the cache, several times as fast as one call of
    LAPACK for each; halves of larger blocks meet in matrix products.

    Args:
        blocks (Tensor): The blocks, of which the upper triangles are read.
        out (Tensor, optional): Where to put the inverses; ``blocks`` itself may be given.
        spare (Tensor, optional): Memory for as many blocks, which many calls may share.

    Returns:
        tuple[Tensor, Tensor]: The inverses, without meaning for other blocks, and which blocks are
        definite, bool ``[m]``.
    """
    blocks = blocks.detach()
    if backend_of(blocks) == "numba" and not blocks.is_complex():
        if out is None:
            out = torch.empty(blocks.shape, dtype=blocks.dtype)
        spare = torch.empty(blocks.shape, dtype=blocks.dtype) if spare is None else spare
        return out, _fill_inverses(blocks, out, spare.view(-1))
    factor, info = torch.linalg.cholesky_ex(blocks, upper=True)
    definite = (info == 0) & (factor.diagonal(dim1=-2, dim2=-1).real > 0).all(dim=-1)
    eye = torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)
    root = root_of_inverse(torch.where(definite.view(-1, 1, 1), factor.mH, eye))
    return torch.bmm(root.mH, root, out=out), definite


def hermitian_norms(blocks: Tensor) -> Tensor:
    """Frobenius norms of Hermitian blocks ``[m, d, d]``, without gradients; where
    :func:`definite_inverses` loops over them, only their upper triangles are read."""
    if backend_of(blocks) != "numba" or blocks.is_complex():
        return torch.linalg.matrix_norm(blocks)
    norms = torch.empty(len(blocks), dtype=blocks.dtype)
    numba_loops().symmetric_norms(blocks.numpy(), norms.numpy())  # type: ignore[union-attr]
    return norms


def root_of_inverse(factor: Tensor) -> Tensor:
    """Lower triangular G with ``G* G`` the inverse of ``L L*``, for factors L ``[m, d, d]``;
    differentiable.

    Faster than torch.cholesky_inverse, by a factor of a hundred on several threads; an LU
    factorization, as in torch.linalg.inv, may even hang on them (oneMKL).
    """
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)


def _fill_inverses(blocks: Tensor, out: Tensor, spare: Tensor, *, roots: bool = False) -> Tensor:
    """Writes the inverses, or lower triangular G with ``G' G`` the inverse; returns which blocks
    are definite. ``spare`` is flat and as large as the blocks; ``out`` may be the blocks."""
    n, size, _ = blocks.shape
    if size <= _LOOP_SIZE:
        root = out if roots and out.is_contiguous() else _take(spare, n, size, size)[0]
        definite = torch.empty(n, dtype=torch.bool)
        numba_loops().roots_of_inverses(  # type: ignore[union-attr]
            root.copy_(blocks).numpy(), definite.numpy()
        )
        if not roots:
            torch.bmm(root.mT, root, out=out)
        elif root is not out:
            out.copy_(root)
        return definite
    # No smaller than the other, whose inversion then has room where the product will be.
    half = (size + 1) // 2
    first, second = slice(half), slice(half, size)
    root, spare = _take(spare, n, half, half)
    definite = _fill_inverses(blocks[:, first, first], root, spare, roots=True)
    factor, spare = _take(spare, n, half, size - half)
    rest, spare = _take(spare, n, size - half, size - half)
    torch.bmm(root, blocks[:, first, second], out=factor)
    torch.baddbmm(blocks[:, second, second], factor.mT, factor, alpha=-1, out=rest)
    definite &= _fill_inverses(rest, rest, spare, roots=roots)
    product, _ = _take(spare, n, size - half, half)
    torch.bmm(factor.mT, root, out=product)
    corner = out[:, second, first]
    torch.baddbmm(corner, rest, product, beta=0, alpha=-1, out=corner)
    out[:, second, second] = rest
    if roots:
        out[:, first, first], out[:, first, second] = root, 0
    else:
        out[:, first, second] = corner.mT
        torch.bmm(root.mT, root, out=out[:, first, first]).baddbmm_(product.mT, corner, alpha=-1)
    return definite


def _take(spare: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """The beginning of flat memory as a tensor of some shape, and what is left."""
    size = math.prod(shape)
    return spare[:size].view(shape), spare[size:]
