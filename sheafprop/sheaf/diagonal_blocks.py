from typing import Any

import torch
from torch import Tensor

from sheafprop.sheaf.vertex_blocks import VertexBlocks, check_blocks, warn_of_lost


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
