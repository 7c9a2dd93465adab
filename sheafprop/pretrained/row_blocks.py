import torch
from torch import Tensor


class RowBlocks:
    r"""Rows in several tensors; appending gives new blocks and copies little more than is new.

    The first block is never copied. Later ones are merged when they are of about equal size.

    Args:
        blocks (list of Tensor): ``[n_i, ...]`` each; second dimensions (sections) of one are
            stretched where blocks with several are merged.
    """

    def __init__(self, blocks: list[Tensor]):
        self.blocks = blocks

    def append(self, rows: Tensor) -> "RowBlocks":
        """Blocks with more rows at the end."""
        blocks = list(self.blocks)
        while len(blocks) > 1 and len(rows) >= len(blocks[-1]):
            rows = _cat([blocks.pop(), rows])
        return RowBlocks([*blocks, rows] if len(rows) else blocks)

    def select(self, index: Tensor) -> Tensor:
        """Rows of an index, ``[n, ...]``."""
        parts, positions, offset = [], [], 0
        for block in self.blocks:
            inside = ((index >= offset) & (index < offset + len(block))).nonzero().flatten()
            if inside.numel():
                parts.append(block[index[inside] - offset])
                positions.append(inside)
            offset += len(block)
        if not parts:
            return self.blocks[0][:0]
        order = torch.cat(positions)
        rows = _cat(parts)
        return torch.empty_like(rows).index_copy_(0, order, rows)

    def from_row(self, start: int) -> Tensor:
        """All rows from one on; a copy only if they lie in several blocks."""
        parts, offset = [], 0
        for block in self.blocks:
            parts.append(block[max(0, start - offset) :])
            offset += len(block)
        return _cat([part for part in parts if len(part)] or parts[:1])

    def __len__(self) -> int:
        return sum(map(len, self.blocks))


def _cat(parts: list[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    if parts[0].dim() == 3:
        sections = max(part.shape[1] for part in parts)
        parts = [part.expand(-1, sections, -1) for part in parts]
    return torch.cat(parts)
