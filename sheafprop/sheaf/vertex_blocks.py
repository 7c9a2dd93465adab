"""The block diagonal D of a sheaf Laplacian, its pseudo-inverse and the projection on its range."""

import warnings
from abc import ABC, abstractmethod

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
