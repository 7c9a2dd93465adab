from functools import cached_property

import torch
from torch import Tensor, get_num_threads

from sheafprop.kernels.backend import run_chunks
from sheafprop.kernels.block_product import multiply_blocks
from sheafprop.kernels.memory import announce, empty
from sheafprop.sheaf.vertex_blocks import VertexBlocks, check_blocks, relative_tolerance

# Bytes of dense blocks that one thread factors at once.
_FACTOR_BYTES = 2 * 2**20


class DenseBlocks(VertexBlocks):
    """Dense blocks, of which equal ones are held and factored once, in chunks of bounded memory.

    The pseudo-inverse is formed explicitly: by Cholesky where the block is well conditioned (judged
    by an estimate of its condition number), by an eigendecomposition with the relative cut-off
    otherwise. Its gradient is the closed formula of Golub and Pereyra, finite also where
    eigenvalues coincide.

    Args:
        blocks (Tensor): The distinct blocks ``[m, d, d]``.
        kind (Tensor): The block of each vertex, int64 ``[n]``.
    """

    def __init__(self, blocks: Tensor, kind: Tensor):
        check_blocks(blocks, kind)
        #: The distinct blocks ``[m, d, d]``.
        self.blocks = blocks
        self._kind = kind
        n, d = blocks.shape[0], blocks.shape[-1]
        # As many chunks as threads at least.
        chunk = min(_FACTOR_BYTES // max(1, d * d * blocks.element_size()), n // get_num_threads())
        chunk = max(1, chunk)
        singular = torch.zeros(n, dtype=torch.bool, device=blocks.device)
        chunks = [slice(start, start + chunk) for start in range(0, n, chunk)]
        if blocks.requires_grad:
            parts = [_pseudo_inverse(blocks[rows]) for rows in chunks]
            self._inverse = torch.cat([inverse for inverse, _ in parts]) if parts else blocks
            singular = torch.cat([found for _, found in parts]) if parts else singular
        else:
            announce(blocks.numel() * blocks.element_size(), "the inverses of the diagonal blocks")
            self._inverse = empty(tuple(blocks.shape), blocks)

            def factor(rows: slice) -> None:
                self._inverse[rows], singular[rows] = _pseudo_inverse(blocks[rows])

            run_chunks(factor, chunks)
        self.singular = singular[kind]
        self._singular_index = self.singular.nonzero().flatten()

    def apply(self, x: Tensor) -> Tensor:
        return multiply_blocks(self.blocks, self._kind, x)

    def apply_pinv(self, x: Tensor) -> Tensor:
        return multiply_blocks(self._inverse, self._kind, x)

    def project(self, x: Tensor) -> Tensor:
        if self._singular_index.numel() == 0:
            return x
        index = self._singular_index
        projections, kind = self._projections
        return x.index_copy(0, index, x[index] @ projections[kind].mT)

    @cached_property
    def _projections(self) -> tuple[Tensor, Tensor]:
        present, kind = torch.unique(self._kind[self._singular_index], return_inverse=True)
        return self._inverse[present] @ self.blocks[present], kind

    def apply_pinv_sqrt(self, x: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(self._inverse)
        roots = (vectors * values.clamp_min(0).sqrt().unsqueeze(1)) @ vectors.mH
        return x @ roots[self._kind].mT

    def norms(self) -> Tensor:
        return torch.linalg.eigvalsh(self.blocks)[:, -1][self._kind]


def _pseudo_inverse(blocks: Tensor) -> tuple[Tensor, Tensor]:
    d = blocks.shape[-1]
    rtol = relative_tolerance(blocks.real.dtype, d)
    factor, info = torch.linalg.cholesky_ex(blocks.detach())
    positive = (info == 0) & (factor.diagonal(dim1=-2, dim2=-1).real > 0).all(dim=-1)
    eye = torch.eye(d, dtype=blocks.dtype, device=blocks.device)
    # Faster than torch.cholesky_inverse, by a factor of a hundred on several threads.
    half = torch.linalg.solve_triangular(
        torch.where(positive.view(-1, 1, 1), factor, eye), eye.expand_as(factor), upper=False
    )
    inverse = half.mH @ half
    # The product of Frobenius norms bounds the condition number; most blocks pass it.
    bound = torch.linalg.matrix_norm(blocks.detach()) * torch.linalg.matrix_norm(inverse)
    regular = positive & (bound < 0.5 / rtol)
    unclear = (positive & ~regular).nonzero().flatten()
    if unclear.numel():
        condition = _largest_eigenvalues(blocks.detach()[unclear])
        condition = condition * _largest_eigenvalues(inverse.detach()[unclear])
        # Near the cut-off only the eigenvalues can decide, and each estimate may be too small.
        regular[unclear] = condition < 0.3 / rtol
    doubtful = (~regular).nonzero().flatten()
    singular = torch.zeros(blocks.shape[0], dtype=torch.bool, device=blocks.device)
    if blocks.requires_grad:
        inverse = torch.zeros_like(blocks)
        certain = regular.nonzero().flatten()
        inverse = inverse.index_copy(0, certain, torch.linalg.inv(blocks[certain]))
    if doubtful.numel():
        part = blocks[doubtful]
        values, vectors = torch.linalg.eigh(part.detach())
        singular[doubtful] = values[:, 0] <= rtol * values[:, -1]
        if blocks.requires_grad:
            pinv = torch.linalg.pinv(part, rtol=rtol, hermitian=True)
        else:
            size = values.abs()
            keep = size > rtol * size.amax(dim=1, keepdim=True)
            reciprocal = torch.where(keep, 1 / torch.where(keep, values, 1.0), 0.0)
            pinv = (vectors * reciprocal.unsqueeze(1)) @ vectors.mH
        inverse = inverse.index_copy(0, doubtful, pinv)
    return inverse, singular


def _largest_eigenvalues(blocks: Tensor, num_iterations: int = 8) -> Tensor:
    """Estimates by the power method, hardly ever more than a factor of 1.5 too small."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(blocks.shape[-1], 4, generator=generator, dtype=blocks.dtype)
    vectors = start.to(blocks.device).expand(blocks.shape[0], -1, -1)
    tiny = torch.finfo(blocks.real.dtype).tiny
    for _ in range(num_iterations):
        vectors = blocks @ vectors
        length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        vectors = vectors / length.clamp_min(tiny)
    return length.flatten(1).amax(dim=1)
