import torch
from torch import Tensor

from sheafprop.sheaf.vertex_blocks import VertexBlocks, check_blocks, relative_tolerance


class DiagonalBlocks(VertexBlocks):
    """Blocks that are diagonal: entries ``[n, d]``, or ``[n, 1]`` for multiples of the identity."""

    def __init__(self, entries: Tensor):
        check_blocks(entries)
        self.entries = entries
        top = entries.amax(dim=1, keepdim=True) if entries.numel() else entries
        in_range = entries > relative_tolerance(entries.dtype, 1) * top
        #: Ones where an entry is in the range, zeros elsewhere; None for ones throughout.
        self.indicator = None if bool(in_range.all()) else in_range.to(entries.dtype)
        #: The pseudo-inverse, entry by entry.
        self.inverse = in_range / torch.where(in_range, entries, 1.0)

    @property
    def singular(self) -> Tensor:
        if self.indicator is None:
            return self.entries.new_zeros(len(self.entries), dtype=torch.bool)
        return (self.indicator == 0).any(dim=1)

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
