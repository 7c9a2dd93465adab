"""The block diagonal D of a sheaf Laplacian, its pseudo-inverse and the projection on its range."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import is_traced

# An eigenvalue of a block below this share of the block's largest counts as zero.
RELATIVE_TOLERANCE = 1e-10


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


def check_blocks(blocks: Tensor, kind: Tensor | None = None) -> None:
    """Refuses blocks whose entries are too large for their number type.

    Args:
        blocks (Tensor): The blocks, or their diagonals.
        kind (Tensor, optional): The block of each vertex; None for one each.

    Raises:
        DivergenceError: The message names the first such vertex among the free ones.
    """
    if is_traced(blocks) or bool(torch.isfinite(blocks.detach().sum())):
        return
    bad = ~torch.isfinite(blocks.detach()).flatten(1).all(dim=1)
    bad = bad if kind is None else bad[kind]
    if bool(bad.any()):
        raise DivergenceError(
            f"the diagonal block of free vertex {int(bad.nonzero()[0])} (counted among the free "
            f"ones) is too large for {blocks.dtype}: scale the maps or edge weights down, or take "
            "double precision"
        )
