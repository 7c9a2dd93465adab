"""The messages of triples in rows, for maps that act on every column by itself."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from sheafprop.kernels.coupling import TypedEntries
from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.kernels.relation_incidence import RelationIncidence


@dataclass(frozen=True)
class Rows:
    """Entries of rows; a column that is not needed is None.

    Args:
        start (Tensor): First entry of every row and their number, int64 ``[n + 1]``.
        src (Tensor, optional): Sources.
        label (Tensor, optional): Relations, plus :math:`R` for the message into the head.
        weight (Tensor, optional): Weights; None for ones.
    """

    start: Tensor
    src: Tensor | None = None
    label: Tensor | None = None
    weight: Tensor | None = None

    def part(self, start: int, stop: int) -> "Rows":
        """Some of the rows."""
        first = self.start[start : stop + 1]
        entries = slice(int(first[0]), int(first[-1]))
        columns = (None if c is None else c[entries] for c in (self.src, self.label, self.weight))
        return Rows(first - first[0], *columns)

    def take(self, index: Tensor, place: Tensor | None = None) -> "Rows":
        """Rows of an ``index`` ``[m]``, in its order, with sources looked up in a ``place``."""
        from sheafprop.kernels import counting_loops

        counts = (self.start[1:] - self.start[:-1])[index]
        start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        columns = []
        for column in (self.src, self.label, self.weight):
            at = None
            if column is not None:
                if column is self.src and place is not None:
                    at = place.to(column.dtype).numpy()
                out = column.new_empty(int(start[-1]))
                arrays = (self.start.numpy(), column.numpy(), index.numpy(), at, start.numpy())
                counting_loops.copy_rows(*arrays, out.numpy())
                column = out
            columns.append(column)
        return Rows(start, *columns)


@dataclass(frozen=True, eq=False)
class FactCSR:
    """The messages into the free vertices of a graph, by their source, for column-wise maps.

    Free vertices are numbered from 0, known ones apart from them. Where ``free`` and ``known``
    have no labels, entries of one source are merged and their weights added up.

    Args:
        num_free, num_known, num_relations (int): Sizes.
        free (Rows): Messages from free vertices, sorted by source, then by label.
        known (Rows): Messages from known vertices, likewise.
        ends (Rows, optional): All ends that are not loops, sorted by label, without sources.
        loops (Rows): Relations of loops.
        total (Tensor): Weight of all ends that are not loops, real ``[n]``.
        num_halo (int): Sources of ``free`` behind the free vertices: free vertices whose rows
            another process has. (default: 0)
    """

    num_free: int
    num_known: int
    num_relations: int
    free: Rows
    known: Rows
    ends: Rows | None
    loops: Rows
    total: Tensor
    num_halo: int = 0

    @property
    def num_entries(self) -> int:
        """Entries that a step reads."""
        return int(self.free.start[-1])

    def incidence(self) -> "RowIncidence":
        """Sums over the ends of each free vertex that are not loops."""
        size = self.num_free, self.num_relations
        return RowIncidence(self.ends, *size, self.total)

    def loop_incidence(self) -> "RowIncidence":
        """Sums over the loops of each free vertex, at the tail."""
        return RowIncidence(self.loops, self.num_free, self.num_relations)

    def sum_all_ends(self, table: Tensor) -> Tensor:
        """Sums rows of a table ``[2 R, ...]`` over all ends; a loop has both."""
        total = self.incidence().sum(table)
        loops = self.loop_incidence()
        if loops.empty:
            return total
        both = table[: self.num_relations] + table[self.num_relations :]
        return total + loops.sum(torch.cat([both, torch.zeros_like(both)]))

    def messages(self, part: Literal["free", "known"]) -> Any:
        """The messages from free or from known vertices, as a sheaf's ``coupling`` takes them: a
        matrix where they are merged, else typed entries."""
        is_free = part == "free"
        rows = self.free if is_free else self.known
        num_sources = self.num_free + self.num_halo if is_free else self.num_known
        symmetric = is_free and not self.num_halo
        assert rows.src is not None
        if rows.label is None:
            return CSRProduct.of_rows(
                rows.start, rows.src, rows.weight, num_sources, symmetric=symmetric
            )
        sizes = num_sources, 2 * self.num_relations
        return TypedEntries(rows.start, rows.src, rows.label, rows.weight, *sizes, symmetric)

    @cached_property
    def touched(self) -> Tensor:
        """Bool ``[n]``: free vertices with a triple of positive weight."""
        out = torch.zeros(self.num_free, dtype=torch.bool)
        for part in (self.free, self.known, self.loops):
            counts = part.start[1:] - part.start[:-1]
            if part.weight is not None:
                positive = torch.cat([part.start[:1], (part.weight > 0).cumsum(0)])
                counts = positive[part.start[1:]] - positive[part.start[:-1]]
            out |= counts > 0
        return out

    def part(self, start: int, stop: int) -> "FactCSR":
        """The ends and loops of some free vertices, numbered anew, without messages."""
        none = Rows(self.free.start.new_zeros(stop - start + 1))
        ends = None if self.ends is None else self.ends.part(start, stop)
        loops, total = self.loops.part(start, stop), self.total[start:stop]
        return FactCSR(stop - start, 0, self.num_relations, none, none, ends, loops, total)

    def share(self, index: Tensor, place: Tensor) -> "FactCSR":
        """The messages into some free vertices, from all of them.

        Args:
            index (Tensor): The vertices in their new order, int64 ``[m]``.
            place (Tensor): The new number of every free vertex as a source ``[n]``: those of
                ``index`` in its order, then the others.
        """
        ends = None if self.ends is None else self.ends.take(index)
        return FactCSR(
            len(index),
            self.num_known,
            self.num_relations,
            self.free.take(index, place),
            self.known.take(index),
            ends,
            self.loops.take(index),
            self.total[index],
            self.num_free - len(index),
        )

    def reached_from(self, anchors: Tensor, reached: Tensor | None = None) -> Tensor:
        """Free vertices that messages lead to from some known ones, bool ``[n]``.

        Args:
            anchors (Tensor): Which known vertices count, bool ``[num_known]``.
            reached (Tensor, optional): What is known of the free vertices and of those in the
                halo, bool ``[n + num_halo]``; it is written to and returned.
        """
        from sheafprop.kernels import counting_loops

        if reached is None:
            reached = torch.zeros(self.num_free + self.num_halo, dtype=torch.bool)
        if self.num_known or self.num_halo:
            known, free = self.known, self.free
            arrays: list[Any] = [known.start, known.src, anchors, free.start, free.src, reached]
            counting_loops.reach(*(tensor.numpy() for tensor in arrays))
        return reached

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ends of all entries (known vertices after the free ones) and weights; loops too."""
        rows, sources, weights = [], [], []
        vertices = torch.arange(self.num_free)
        for part, offset in ((self.free, 0), (self.known, self.num_free), (self.loops, 0)):
            counts = part.start[1:] - part.start[:-1]
            row = torch.repeat_interleave(vertices, counts)
            rows.append(row)
            sources.append(row if part is self.loops else part.src.long() + offset)  # type: ignore[union-attr]
            ones = torch.ones(len(row), dtype=self.total.dtype)
            weights.append(ones if part.weight is None else part.weight.to(ones.dtype))
        return torch.cat(rows), torch.cat(sources), torch.cat(weights)


class RowIncidence(RelationIncidence):
    """The incidence of triple ends whose labels lie in rows already.

    Args:
        ends (Rows, optional): The ends, sorted by label; None where only their total is known.
        num_vertices, num_relations (int): Sizes.
        total (Tensor, optional): Weight of the ends of each vertex ``[n]``.
    """

    def __init__(
        self, ends: Rows | None, num_vertices: int, num_relations: int, total: Tensor | None = None
    ):
        self.num_vertices, self.num_relations = num_vertices, num_relations
        self._ends, self._total = ends, total

    @property
    def empty(self) -> bool:
        return self._ends is not None and int(self._ends.start[-1]) == 0

    def sum(self, table: Tensor) -> Tensor:
        if self._total is not None and table[:1].numel() == 1 and bool((table == 1).all()):
            return self._total.to(table.dtype).view(-1, *table.shape[1:])
        return self._product(table)

    def total(self) -> Tensor:
        if self._total is not None:
            return self._total.unsqueeze(1)
        return self._product(torch.ones(2 * self.num_relations, 1))

    @cached_property
    def _product(self) -> CSRProduct:
        ends = self._ends
        if ends is None or ends.label is None:
            raise RuntimeError("the labels of the ends were left out when the rows were built")
        return CSRProduct.of_rows(ends.start, ends.label, ends.weight, 2 * self.num_relations)
