"""The off-diagonal part of a sheaf Laplacian: its entries, also by relation, and what a step does
with it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sheafprop.kernels.backend import (
    backend_of,
    compact,
    leave_inference_mode,
    run_starts,
    sort_rows,
    stable_order,
)
from sheafprop.kernels.csr_product import CSRProduct, Terms
from sheafprop.kernels.rows import real_rows


@dataclass(frozen=True)
class CouplingEntries:
    r"""One entry per message: into vertex ``dst`` from vertex ``src``.

    ``label`` is the relation :math:`r` for the message into the tail, :math:`w R_t^* R_h x_h`, and
    :math:`R + r` for the message into the head, :math:`w R_h^* R_t x_t`. Destinations and sources
    are numbered separately, so that a block of the matrix (free by free, free by boundary) is a
    list of its own. ``symmetric`` says that every message comes with its reverse.
    """

    dst: Tensor
    src: Tensor
    label: Tensor
    weight: Tensor
    num_dst: int
    num_src: int
    symmetric: bool = False


class Coupling(ABC):
    """The sum of messages :math:`A x` as a function of the source features ``[n, s, d]``."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        r"""Computes :math:`A x`."""

    def combine(self, x: Tensor, terms: Terms) -> Tensor:
        r"""Computes :math:`(f_0 + f_1 \, o) \, x + f_2 \, g \, (A x + c)` in one pass if it can.

        A step, the Laplacian and the gradient all have this form. Sources and destinations must be
        the same vertices.

        Args:
            x (Tensor): Features ``[n, s, d]``.
            terms (Terms): All the others.
        """
        received, (factors, own, gain, constant, _) = self(x), terms
        if constant is not None:
            received = received + constant
        # Each operation on features is bound by memory, so factors are combined first; real factors
        # multiply complex numbers as pairs.
        pairs = received.is_complex()
        rows, received = real_rows(x.to(received.dtype)), real_rows(received)
        kept: float | Tensor = factors[0] + factors[1]
        if own is not None and factors[1] != 0:
            kept = _as_factor(own, rows, pairs, factors[1])
            kept = kept + factors[0] if factors[0] != 0 else kept
        rows = kept * rows
        if gain is None:
            rows = torch.add(rows, received, alpha=factors[2])
        else:
            rows = rows.addcmul(_as_factor(gain, rows, pairs, factors[2]), received)
        return torch.view_as_complex(rows.unflatten(-1, (-1, 2))) if pairs else rows

    def combine_rows(self, rows: tuple[int, int], x: Tensor, terms: Terms) -> bool:
        """Computes some rows of :meth:`combine` in ``terms.out``, from the first to that behind the
        last.

        The destinations are the first of the sources, of which there may be more.

        Returns:
            bool: Whether this is done; False where no loop takes some rows alone.
        """
        return False


class EmptyCoupling(Coupling):
    """No messages at all.

    Args:
        num_dst (int): Number of destinations.
    """

    def __init__(self, num_dst: int):
        self._num_dst = num_dst

    def __call__(self, x: Tensor) -> Tensor:
        return x.new_zeros(self._num_dst, *x.shape[1:])


class IdentityCoupling(Coupling):
    """Messages of identity maps: one sparse product, parallel triples merged into one entry.

    ``entries`` may be that product.
    """

    def __init__(self, entries: CouplingEntries | CSRProduct):
        if isinstance(entries, CSRProduct):
            self._product = entries
            return
        self._product = CSRProduct(
            entries.dst,
            entries.src,
            entries.weight,
            entries.num_dst,
            entries.num_src,
            symmetric=entries.symmetric,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x)

    def combine(self, x: Tensor, terms: Terms) -> Tensor:
        if backend_of(x) == "torch" or needs_gradient(x, *terms[1:4]):
            return super().combine(x, terms)
        return self._product.combine(x, terms)

    def combine_rows(self, rows: tuple[int, int], x: Tensor, terms: Terms) -> bool:
        if backend_of(x) != "numba":
            return False
        self._product.combine(x, terms, rows)
        return True


def _as_factor(values: Tensor, rows: Tensor, pairs: bool, times: float) -> Tensor:
    """Multiples of real values ``[n, 1]`` or ``[n, d]`` as what multiplies real rows ``[n, s, m]``;
    with ``pairs``, two neighboring columns of these are one complex number."""
    values = values.to(rows.dtype)
    values = values if times == 1 else times * values
    if pairs and values.shape[1] > 1:
        values = values.repeat_interleave(2, 1)
    return values.unsqueeze(1)


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd records what happens to any of these."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


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
