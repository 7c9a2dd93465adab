"""The block diagonal D of a sheaf Laplacian, its pseudo-inverse and the projection on its range."""

import warnings
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import all_finite

# An eigenvalue of a block below this share of the block's largest counts as zero.
RELATIVE_TOLERANCE = 1e-10


def relative_tolerance(dtype: torch.dtype, dimension: int) -> float:
    """The cut-off for singular values: 1e-10, or what the number type can resolve if coarser."""
    return max(RELATIVE_TOLERANCE, 10 * dimension * torch.finfo(dtype).eps)


class VertexBlocks(ABC):
    """One positive semidefinite block per vertex, acting on features ``[n, s, d]``."""

    @property
    @abstractmethod
    def singular(self) -> Tensor:
        """Bool ``[n]``: the block has a kernel."""

    def prepare(self) -> None:  # noqa: B027 (there may be nothing to do)
        """Computes the pseudo-inverses now, where they would be at their first use."""

    @abstractmethod
    def num_frozen(self, width: int) -> Tensor:
        """How many of the ``width`` coordinates of each vertex lie in the block's kernel, int64
        ``[n]``: no step moves them."""

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


def warn_of_lost(count: int, dtype: torch.dtype, what: str = "coordinates of free") -> None:
    """Warns that maps which are not zero freeze coordinates, since a number type cannot hold their
    weighted squares or the inverses of these."""
    if count:
        warnings.warn(
            f"the maps of {count} {what} vertices are not zero, but their squares are too small "
            f"for {dtype}, and the coordinates keep their start: scale the maps or edge weights "
            "up, or take double precision"
        )


def check_blocks(blocks: Tensor, vertices: Tensor | None = None) -> None:
    """Refuses blocks whose entries are too large for their number type.

    Args:
        blocks (Tensor): The blocks, or their diagonals.
        vertices (Tensor, optional): A vertex of each block; None where they are the vertices'.

    Raises:
        DivergenceError: The message names the first such vertex among the free ones.
    """
    if all_finite(blocks):
        return
    bad = (~torch.isfinite(blocks.detach()).flatten(1).all(dim=1)).nonzero().flatten()
    if bad.numel():
        vertex = int((bad if vertices is None else vertices[bad]).min())
        raise DivergenceError(
            f"the diagonal block of free vertex {vertex} (counted among the free ones) is too "
            f"large for {blocks.dtype}: scale the maps or edge weights down, or take double "
            "precision"
        )


class DiagonalBlocks(VertexBlocks):
    """Blocks that are diagonal: entries ``[n, d]``, or ``[n, 1]`` for multiples of the identity.

    Coordinates do not mix, so an entry is in the range if it is positive, however large the others
    are; below the smallest normal number its inverse may overflow.

    Args:
        entries (Tensor): The diagonals.
        present (Tensor, optional): Bool, like ``entries``: where a map is not zero, though its
            square may be. A warning counts the entries that are too small for an inverse.
    """

    def __init__(self, entries: Tensor, present: Tensor | None = None):
        check_blocks(entries)
        self.entries = entries
        in_range = entries >= torch.finfo(entries.dtype).tiny
        #: Ones where an entry is in the range, zeros elsewhere; None for ones throughout.
        self.indicator = None
        if not bool(in_range.all()):
            self.indicator = in_range.to(entries.dtype)
            lost = (entries > 0 if present is None else present | (entries > 0)) & ~in_range
            what = "free" if entries.shape[1] == 1 else "coordinates of free"
            warn_of_lost(int(lost.sum()), entries.dtype, what)
        #: The pseudo-inverse, entry by entry.
        safe = torch.where(in_range, entries, 1.0)
        if bool((safe < torch.finfo(entries.dtype).tiny ** 0.5).any()):
            self.inverse = in_range * _Reciprocal.apply(safe)
        else:
            self.inverse = in_range / safe

    @property
    def singular(self) -> Tensor:
        if self.indicator is None:
            return self.entries.new_zeros(len(self.entries), dtype=torch.bool)
        return (self.indicator == 0).any(dim=1)

    def num_frozen(self, width: int) -> Tensor:
        n = len(self.entries)
        if self.indicator is None:
            return torch.zeros(n, dtype=torch.long, device=self.entries.device)
        return (self.indicator == 0).expand(n, width).sum(dim=1)

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


class _Reciprocal(torch.autograd.Function):
    r"""The reciprocal, whose gradient :math:`-(g / x) / x` is zero where :math:`g` is.

    That of PyTorch multiplies by :math:`1 / x^2`, which overflows where a loop's maps are close, so
    that an entity with nothing but loops would get :math:`0 \cdot \infty`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = 1 / x
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return -(grad * out) * out
