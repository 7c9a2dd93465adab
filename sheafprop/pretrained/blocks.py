"""Rows of a model in blocks, so that adding copies little more than is new.

The first blocks, those of training, are never copied. Later ones are merged when they are of about
equal size. Removed rows stay where they are: :class:`Numbering` numbers those that are left.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from sheafprop.pretrained.tensor_file import StoredFile

Block = TypeVar("Block")


def append_block(
    blocks: Sequence[Block],
    block: Block,
    size: Callable[[Block], int],
    merge: Callable[[Block, Block], Block],
    fixed: int = 1,
) -> list[Block]:
    """The blocks with one more, merged with those before it, but the fixed ones, that are no
    larger."""
    blocks = list(blocks)
    while len(blocks) > fixed and size(block) >= size(blocks[-1]):
        block = merge(blocks.pop(), block)
    return [*blocks, block] if size(block) else blocks


class Numbering:
    """The numbers of what is left, where some of what was numbered is removed.

    Args:
        removed (Tensor, optional): Numbers that are gone, distinct and ascending, int64.
    """

    def __init__(self, removed: Tensor | None = None):
        self.removed = torch.zeros(0, dtype=torch.int64) if removed is None else removed
        self._shift = self.removed - torch.arange(len(self.removed))

    def old(self, numbers: Tensor) -> Tensor:
        """The numbers before the removal."""
        if not len(self.removed):
            return numbers
        return numbers + torch.searchsorted(self._shift, numbers.contiguous(), right=True)

    def new(self, old: Tensor) -> Tensor:
        """The numbers after the removal, -1 for what is gone (and for negative numbers)."""
        if not len(self.removed):
            return old
        place = torch.searchsorted(self.removed, old.contiguous())
        gone = self.removed[place.clamp(max=len(self.removed) - 1)] == old
        return torch.where(gone | (old < 0), -1, old - place)

    def within(self, start: int, stop: int) -> Tensor:
        """What of ``start`` to ``stop`` (old numbers) is gone, counted from ``start``."""
        ends = torch.searchsorted(self.removed, torch.tensor([start, stop])).tolist()
        return self.removed[ends[0] : ends[1]] - start

    def remove(self, old: Tensor) -> "Numbering":
        """A numbering without more of the old numbers."""
        return Numbering(torch.unique(torch.cat([self.removed, old])))

    def keep(self, rows: Tensor, start: int) -> Tensor:
        """Rows, the first of which has the old number ``start``, without those that are gone."""
        gone = self.within(start, start + len(rows))
        if not len(gone):
            return rows
        kept = torch.ones(len(rows), dtype=torch.bool)
        kept[gone] = False
        return rows[kept]

    def __len__(self) -> int:
        return len(self.removed)


class RowBlocks:
    r"""Rows in several tensors.

    Args:
        blocks (list of Tensor): ``[n_i, ...]`` each; second dimensions (sections) of one are
            stretched where blocks with several are merged.
        fixed (int): How many blocks are never copied, from the first on.
        files (list, optional): The file that each block is mapped from, if any.
    """

    def __init__(
        self, blocks: list[Tensor], *, fixed: int = 1, files: list[StoredFile | None] | None = None
    ):
        self.blocks, self.fixed = blocks, fixed
        self.files: list[StoredFile | None] = [None] * len(blocks) if files is None else files
        self.numbering = Numbering()

    def _with(self, blocks: list[Tensor]) -> "RowBlocks":
        """The same with other blocks; those that are still there keep their files."""
        files: list[StoredFile | None] = [
            file if old is new else None
            for old, new, file in zip(self.blocks, blocks, self.files, strict=False)
        ]
        files += [None] * (len(blocks) - len(files))
        other = RowBlocks(blocks, fixed=self.fixed, files=files)
        other.numbering = self.numbering
        return other

    def append(self, rows: Tensor) -> "RowBlocks":
        """Blocks with more rows at the end."""
        return self._with(
            append_block(self.blocks, rows, len, lambda *parts: _cat(parts), self.fixed)
        )

    def without(self, ids: Tensor) -> "RowBlocks":
        """The same blocks without some rows."""
        other = self._with(self.blocks)
        other.numbering = self.numbering.remove(self.numbering.old(ids))
        return other

    def with_rows(self, ids: Tensor, rows: Tensor) -> "RowBlocks":
        """Blocks in which some rows ``[n, s, d]`` are others; only blocks with such are copied."""
        blocks, ids, offset = [], self.numbering.old(ids), 0
        for block in self.blocks:
            inside = ((ids >= offset) & (ids < offset + len(block))).nonzero().flatten()
            place, offset = ids[inside] - offset, offset + len(block)
            if len(inside):
                sections = max(block.shape[1], rows.shape[1])
                block = block.expand(-1, sections, -1).clone()
                block[place] = rows[inside].expand(-1, sections, -1)
            blocks.append(block)
        return self._with(blocks)

    def select(self, index: Tensor) -> Tensor:
        """Rows of an index, ``[n, ...]``."""
        parts, positions, offset = [], [], 0
        index = self.numbering.old(index)
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

    def slices(self, size: int, start: int = 0) -> Iterator[Tensor]:
        """All rows from one on, in their order, in views of up to ``size``; copies of slices in
        which some are removed."""
        first, offset = int(self.numbering.old(torch.tensor(start))), 0
        for block in self.blocks:
            for begin in range(max(0, first - offset), len(block), size):
                rows = self.numbering.keep(block[begin : begin + size], offset + begin)
                if len(rows):
                    yield rows
            offset += len(block)

    def between(self, first: int, end: int) -> "RowBlocks":
        """The rows from one up to another, numbered from zero."""
        blocks = []
        for rows in self.slices(max(1, end - first), first):
            if first >= end:
                break
            blocks.append(rows[: end - first])
            first += len(blocks[-1])
        return RowBlocks(blocks or [self.blocks[0][:0]])

    def part(self, first: int, last: int | None = None) -> "RowBlocks":
        """Some of the blocks, numbered from zero."""
        start = sum(map(len, self.blocks[:first]))
        blocks = self.blocks[first:last]
        part = RowBlocks(blocks, files=self.files[first:last])
        part.numbering = Numbering(self.numbering.within(start, start + sum(map(len, blocks))))
        return part

    def trained(self) -> "RowBlocks":
        """The fixed blocks."""
        return self.part(0, self.fixed)

    def added(self) -> "RowBlocks":
        """The other blocks."""
        return self.part(self.fixed)

    def from_row(self, start: int) -> Tensor:
        """All rows from one on; a copy only if they lie in several blocks or some are removed."""
        parts = list(self.slices(max(map(len, self.blocks), default=0) + 1, start))
        return _cat(parts) if parts else self.blocks[0][:0]

    def __len__(self) -> int:
        return sum(map(len, self.blocks)) - len(self.numbering)


def _cat(parts: Sequence[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    if parts[0].dim() == 3:
        sections = max(part.shape[1] for part in parts)
        parts = [part.expand(-1, sections, -1) for part in parts]
    return torch.cat(list(parts))
