import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of, numba_loops


def definite_inverses(blocks: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Inverses of the positive definite ones among Hermitian blocks ``[m, d, d]``, on one thread.

    A compiled loop eliminates a real block in the cache, several times as fast as one call of
    LAPACK for each.

    Args:
        blocks (Tensor): The blocks.
        out (Tensor, optional): Where to put the inverses.

    Returns:
        tuple[Tensor, Tensor]: The inverses, without meaning for other blocks, and which blocks are
        definite, bool ``[m]``.
    """
    blocks = blocks.detach()
    if backend_of(blocks) == "numba" and not blocks.is_complex():
        root = torch.empty_like(blocks, memory_format=torch.contiguous_format)
        definite = torch.empty(len(blocks), dtype=torch.bool)
        numba_loops().roots_of_inverses(  # type: ignore[union-attr]
            blocks.contiguous().numpy(), root.numpy(), definite.numpy()
        )
        return torch.bmm(root.mT, root, out=out), definite
    factor, info = torch.linalg.cholesky_ex(blocks)
    definite = (info == 0) & (factor.diagonal(dim1=-2, dim2=-1).real > 0).all(dim=-1)
    eye = torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)
    # Faster than torch.cholesky_inverse, by a factor of a hundred on several threads.
    root = torch.linalg.solve_triangular(
        torch.where(definite.view(-1, 1, 1), factor, eye), eye.expand_as(factor), upper=False
    )
    return torch.bmm(root.mH, root, out=out), definite
