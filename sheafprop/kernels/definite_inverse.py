import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of, numba_loops

# Larger blocks are halved: up to here the compiled loop keeps up with matrix products.
_LOOP_SIZE = 64


def definite_inverses(
    blocks: Tensor, out: Tensor | None = None, spare: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Inverses of the positive definite ones among Hermitian blocks ``[m, d, d]``, on one thread.

    A compiled loop eliminates a real block in the cache, several times as fast as one call of
    LAPACK for each; halves of larger blocks meet in matrix products.

    Args:
        blocks (Tensor): The blocks.
        out (Tensor, optional): Where to put the inverses; ``blocks`` itself may be given.
        spare (Tensor, optional): Memory for as many blocks, which many calls may share.

    Returns:
        tuple[Tensor, Tensor]: The inverses, without meaning for other blocks, and which blocks are
        definite, bool ``[m]``.
    """
    blocks = blocks.detach()
    if backend_of(blocks) == "numba" and not blocks.is_complex():
        root = torch.empty(blocks.shape, dtype=blocks.dtype) if spare is None else spare
        definite = _fill_roots(blocks, root)
        return _squares(root, torch.empty_like(root) if out is None else out), definite
    factor, info = torch.linalg.cholesky_ex(blocks)
    definite = (info == 0) & (factor.diagonal(dim1=-2, dim2=-1).real > 0).all(dim=-1)
    eye = torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)
    root = root_of_inverse(torch.where(definite.view(-1, 1, 1), factor, eye))
    return torch.bmm(root.mH, root, out=out), definite


def root_of_inverse(factor: Tensor) -> Tensor:
    """Lower triangular G with ``G* G`` the inverse of ``L L*``, for factors L ``[m, d, d]``;
    differentiable.

    Faster than torch.cholesky_inverse, by a factor of a hundred on several threads; an LU
    factorisation, as in torch.linalg.inv, may even hang on them (oneMKL).
    """
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)


def _fill_roots(blocks: Tensor, out: Tensor) -> Tensor:
    """Lower triangular G with ``G' G`` the inverse of a block, and which blocks are definite."""
    size = blocks.shape[1]
    if size <= _LOOP_SIZE:
        root = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype)
        definite = torch.empty(len(blocks), dtype=torch.bool)
        numba_loops().roots_of_inverses(  # type: ignore[union-attr]
            blocks.contiguous().numpy(), root.numpy(), definite.numpy()
        )
        if root is not out:
            out.copy_(root)
        return definite
    half = size // 2
    first, second = slice(half), slice(half, size)
    definite = _fill_roots(blocks[:, first, first], out[:, first, first])
    factor = torch.bmm(blocks[:, second, first], out[:, first, first].mT)
    rest = torch.baddbmm(blocks[:, second, second], factor, factor.mT, alpha=-1)
    definite &= _fill_roots(rest, out[:, second, second])
    out[:, first, second] = 0
    left = torch.bmm(out[:, second, second], factor)
    corner = out[:, second, first]
    torch.baddbmm(corner, left, out[:, first, first], beta=0, alpha=-1, out=corner)
    return definite


def _squares(root: Tensor, out: Tensor) -> Tensor:
    """``G' G`` for lower triangular G, whose zeros are left out where blocks are large."""
    size = root.shape[1]
    if size <= _LOOP_SIZE:
        return torch.bmm(root.mT, root, out=out)
    half = size // 2
    first, second = slice(half), slice(half, size)
    top, left, bottom = root[:, first, first], root[:, second, first], root[:, second, second]
    torch.bmm(bottom.mT, bottom, out=out[:, second, second])
    torch.bmm(bottom.mT, left, out=out[:, second, first])
    out[:, first, second] = out[:, second, first].mT
    torch.bmm(top.mT, top, out=out[:, first, first]).baddbmm_(left.mT, left)
    return out
