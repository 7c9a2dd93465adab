"""The block diagonal D of a sheaf Laplacian, its pseudo-inverse and the projection on its range."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

# An eigenvalue of a block below this share of the block's largest counts as zero.
RELATIVE_TOLERANCE = 1e-10
# Bytes of dense blocks factored at once.
_FACTOR_BYTES = 128 * 2**20


def relative_tolerance(dtype: torch.dtype, dimension: int) -> float:
    """The cut-off for singular values: 1e-10, or what the number type can resolve if coarser."""
    return max(RELATIVE_TOLERANCE, 10 * dimension * torch.finfo(dtype).eps)


class VertexBlocks(ABC):
    """One positive semidefinite block per vertex, acting on features ``[n, s, d]``."""

    #: Bool ``[n]``: the block has a kernel.
    singular: Tensor

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """Multiplies by the blocks."""

    @abstractmethod
    def apply_pinv(self, x: Tensor) -> Tensor:
        """Multiplies by the pseudo-inverses of the blocks."""

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """Projects on the range of the blocks."""

    @abstractmethod
    def apply_pinv_sqrt(self, x: Tensor) -> Tensor:
        """Multiplies by the square roots of the pseudo-inverses."""

    @abstractmethod
    def norms(self) -> Tensor:
        """Largest eigenvalue of each block, ``[n]``."""


class DiagonalBlocks(VertexBlocks):
    """Blocks that are diagonal: entries ``[n, d]``, or ``[n, 1]`` for multiples of the identity."""

    def __init__(self, entries: Tensor):
        self.entries = entries
        top = entries.amax(dim=1, keepdim=True) if entries.numel() else entries
        in_range = entries > relative_tolerance(entries.dtype, 1) * top
        self.singular = ~in_range.all(dim=1)
        #: Ones where an entry is in the range, zeros elsewhere; None for ones throughout.
        self.indicator = in_range.to(entries.dtype) if bool(self.singular.any()) else None
        #: The pseudo-inverse, entry by entry.
        self.inverse = torch.where(in_range, 1 / torch.where(in_range, entries, 1.0), 0.0)

    def apply(self, x: Tensor) -> Tensor:
        return x * self.entries.unsqueeze(1)

    def apply_pinv(self, x: Tensor) -> Tensor:
        return x * self.inverse.unsqueeze(1)

    def project(self, x: Tensor) -> Tensor:
        return x if self.indicator is None else x * self.indicator.unsqueeze(1)

    def apply_pinv_sqrt(self, x: Tensor) -> Tensor:
        return x * self.inverse.sqrt().unsqueeze(1)

    def norms(self) -> Tensor:
        return self.entries.amax(dim=1)


class DenseBlocks(VertexBlocks):
    """Dense blocks ``[n, d, d]``; factored once, in chunks of bounded memory.

    The pseudo-inverse is formed explicitly: by Cholesky where the block is well conditioned (judged
    by its condition number in the 1-norm), by an eigendecomposition with the relative cut-off
    otherwise. Its gradient is the closed formula of Golub and Pereyra, finite also where
    eigenvalues coincide.
    """

    def __init__(self, blocks: Tensor):
        self.blocks = blocks
        n, d = blocks.shape[0], blocks.shape[-1]
        chunk = max(1, _FACTOR_BYTES // max(1, d * d * blocks.element_size()))
        inverses, singular = [], []
        for start in range(0, n, chunk):
            inverse, deficient = _pseudo_inverse(blocks[start : start + chunk])
            inverses.append(inverse)
            singular.append(deficient)
        self._inverse = torch.cat(inverses) if inverses else blocks
        self.singular = torch.cat(singular) if singular else blocks.new_zeros(0, dtype=torch.bool)
        self._singular_index = self.singular.nonzero().flatten()

    def apply(self, x: Tensor) -> Tensor:
        return x @ self.blocks.mT

    def apply_pinv(self, x: Tensor) -> Tensor:
        return x @ self._inverse.mT

    def project(self, x: Tensor) -> Tensor:
        if self._singular_index.numel() == 0:
            return x
        index = self._singular_index
        projected = x[index] @ (self._inverse[index] @ self.blocks[index]).mT
        return x.index_copy(0, index, projected)

    def apply_pinv_sqrt(self, x: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(self._inverse)
        rotated = x @ vectors.conj()
        return (rotated * values.clamp_min(0).sqrt().unsqueeze(1)) @ vectors.mT

    def norms(self) -> Tensor:
        return torch.linalg.eigvalsh(self.blocks)[:, -1]


def _pseudo_inverse(blocks: Tensor) -> tuple[Tensor, Tensor]:
    d = blocks.shape[-1]
    rtol = relative_tolerance(blocks.real.dtype, d)
    factor, info = torch.linalg.cholesky_ex(blocks.detach())
    positive = (info == 0) & (factor.diagonal(dim1=-2, dim2=-1).real > 0).all(dim=-1)
    eye = torch.eye(d, dtype=blocks.dtype, device=blocks.device)
    inverse = torch.cholesky_inverse(torch.where(positive.view(-1, 1, 1), factor, eye))
    condition = torch.linalg.matrix_norm(blocks.detach(), ord=1) * torch.linalg.matrix_norm(
        inverse, ord=1
    )
    # Near the cut-off only the eigenvalues can decide, hence the margin of 1 / 100.
    regular = positive & (condition < 0.01 / rtol)
    doubtful = (~regular).nonzero().flatten()
    singular = torch.zeros(blocks.shape[0], dtype=torch.bool, device=blocks.device)
    if blocks.requires_grad:
        inverse = torch.zeros_like(blocks)
        certain = regular.nonzero().flatten()
        inverse = inverse.index_copy(0, certain, torch.linalg.inv(blocks[certain]))
    if doubtful.numel():
        part = blocks[doubtful]
        inverse = inverse.index_copy(
            0, doubtful, torch.linalg.pinv(part, rtol=rtol, hermitian=True)
        )
        values = torch.linalg.eigvalsh(part.detach())
        singular[doubtful] = values[:, 0] <= rtol * values[:, -1]
    return inverse, singular
