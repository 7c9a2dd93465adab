from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sheafprop.kernels.backend import (
    compact,
    leave_inference_mode,
    run_starts,
    sort_rows,
    stable_order,
)
from sheafprop.kernels.coupling import CouplingEntries

# Entries behind one partial sum of a table's gradient; fixed, so that no sum depends on threads.
_PIECE = 4096


@dataclass(frozen=True)
class LabelPieces:
    """Entries sorted by label and cut into pieces of one label each."""

    start: Tensor
    label: Tensor
    dst: Tensor
    src: Tensor
    weight: Tensor | None


@dataclass(frozen=True)
class TypedEntries:
    r"""The messages of a coupling sorted by their destination, then by their source.

    Args:
        start (Tensor): First entry of every destination and their number, int64 ``[n + 1]``.
        src (Tensor): Sources of the entries.
        label (Tensor): Row of a table of :math:`2R` coefficients: the relation, plus :math:`R` for
            the message into the head.
        weight (Tensor, optional): Real weights; None where all are one.
        num_src, num_labels (int): Bounds of the ids.
        symmetric (bool): Every message comes with its reverse.
    """

    start: Tensor
    src: Tensor
    label: Tensor
    weight: Tensor | None
    num_src: int
    num_labels: int
    symmetric: bool = False

    @classmethod
    def from_coupling(cls, entries: CouplingEntries, num_relations: int) -> "TypedEntries":
        weighted = not bool((entries.weight == 1).all())
        return _sort_entries(
            entries.dst,
            entries.src,
            entries.label,
            entries.weight if weighted else None,
            (entries.num_dst, entries.num_src, 2 * num_relations),
            entries.symmetric,
        )

    @property
    def num_dst(self) -> int:
        return self.start.numel() - 1

    def dst(self) -> Tensor:
        counts = self.start[1:] - self.start[:-1]
        return torch.repeat_interleave(
            torch.arange(self.num_dst, device=counts.device), counts, output_size=self.src.numel()
        )

    def adjoint(self, table: Tensor) -> tuple["TypedEntries", Tensor]:
        """The entries with source and destination exchanged, and the table in their labels."""
        if self.symmetric:
            # The reverse of a message carries the other direction's label.
            return self, table.roll(self.num_labels // 2, 0)
        return self._transposed, table

    @cached_property
    @leave_inference_mode()
    def _transposed(self) -> "TypedEntries":
        sizes = (self.num_src, self.num_dst, self.num_labels)
        return _sort_entries(
            self.src.long(), self.dst(), self.label.long(), self.weight, sizes, False
        )

    @cached_property
    @leave_inference_mode()
    def pieces(self) -> LabelPieces:
        """The entries by label, for sums over the entries of each."""
        start, order = stable_order(self.label.long(), self.num_labels)
        counts = start[1:] - start[:-1]
        number = torch.div(counts + _PIECE - 1, _PIECE, rounding_mode="floor")
        labels = torch.arange(self.num_labels, device=start.device)
        label = torch.repeat_interleave(labels, number)
        first = torch.cumsum(number, 0) - number
        within = torch.arange(label.numel(), device=start.device) - first[label]
        return LabelPieces(
            torch.cat([start[label] + within * _PIECE, start[-1:]]),
            label,
            compact(self.dst()[order], self.num_dst),
            self.src[order],
            None if self.weight is None else self.weight[order],
        )


def _sort_entries(
    dst: Tensor,
    src: Tensor,
    label: Tensor,
    weight: Tensor | None,
    sizes: tuple[int, int, int],
    symmetric: bool,
) -> TypedEntries:
    num_dst, num_src, num_labels = sizes
    (dst, src, label), weight = sort_rows(
        [(dst, num_dst), (src, num_src), (label, num_labels)], weight
    )
    return TypedEntries(
        run_starts(dst, num_dst),
        compact(src, num_src),
        compact(label, num_labels),
        weight,
        num_src,
        num_labels,
        symmetric,
    )
