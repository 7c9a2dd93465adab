from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sheafprop.data.finite_rows import name_nonfinite_rows
from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.pairwise_squares import chunks_of, square_lengths
from sheafprop.kernels.rows import full_precision
from sheafprop.kernels.threads import run_chunks, run_rows
from sheafprop.kge.base import KGEModel, Side
from sheafprop.sheaf import RelationSheaf

# Scores that are held at once, and numbers of the vectors that are scored at once: a piece of the
# table that several threads share, read once from where it lies.
_SCORES = 2**24
_NUMBERS = 2**25
# Queries from which on threads share these, and not the candidates.
_ROWS = 8


class Rows(Protocol):
    """Vectors of entities in blocks ``[n_i, s_i, d]``; ``s_i`` is 1 if all sections are equal."""

    @property
    def blocks(self) -> Sequence[Tensor]: ...

    def slices(self, size: int) -> Iterator[Tensor]: ...

    def __len__(self) -> int: ...


class CandidateScorer:
    r"""Scores all entities of a model as heads or tails, without copying their vectors.

    If the maps preserve norms (TransE, RotatE), a query is one product of the table with a vector,
    since the squared norms of the rows are cached. Other diagonal maps need one pass over the
    table, and dense maps process it in blocks that fit the cache.

    Args:
        model (KGEModel): The model that scores one section.
        sheaf (RelationSheaf): Its sheaf.
        rows (Rows): Vectors of all entities, in blocks.
        section_weight (sequence of float): The weights of the sections, which add up to one.
        step (int, optional): Number of entities scored at once, which does not change their scores.
            (default: by the width of the first block)
    """

    def __init__(
        self,
        model: KGEModel,
        sheaf: RelationSheaf,
        rows: Rows,
        section_weight: Sequence[float],
        step: int | None = None,
    ):
        self.model, self.sheaf = model, sheaf
        self.rows, self.section_weight = rows, section_weight
        if step is None:
            block = rows.blocks[0]
            width = block[:1].numel() * (2 if block.is_complex() else 1)
            step = max(1024, _NUMBERS // max(1, width))
        self.step = step
        self._lengths: dict[tuple[int, int], Tensor] = {}

    def block_size(self) -> int:
        """The number of queries whose scores of all entities fit in memory."""
        return max(1, _SCORES // max(1, len(self.rows)))

    def queries_at_once(self) -> int:
        """The number of queries to score in one pass through the blocks."""
        return max(1, _SCORES // self.step)

    @torch.no_grad()
    def scores(self, known: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        """Returns the scores ``[B, N]`` of all entities on one side of triples.

        Args:
            known (Tensor): Vectors ``[B, s, d]`` on the other side.
            rel_type (Tensor): Relations, ``[B]``.
            side (str): ``"tail"`` or ``"head"``: the side of the candidates.
        """
        out = known.real.new_empty(len(known), len(self.rows))
        offset = 0
        for number, rows in enumerate(self.rows.slices(self.step)):
            self._fill(out[:, offset : offset + len(rows)], known, rel_type, number, rows, side)
            offset += len(rows)
        return out

    @torch.no_grad()
    def blocks(self, known: Tensor, rel_type: Tensor, side: Side) -> Iterator[tuple[int, Tensor]]:
        """Yields the scores by blocks: the first entity of a block, and its scores ``[B, n]``."""
        offset = 0
        for number, rows in enumerate(self.rows.slices(self.step)):
            out = known.real.new_empty(len(known), len(rows))
            self._fill(out, known, rel_type, number, rows, side)
            yield offset, out
            offset += len(rows)

    def _fill(
        self, out: Tensor, known: Tensor, rel_type: Tensor, number: int, rows: Tensor, side: Side
    ) -> None:
        if max(known.shape[1], rows.shape[1]) == 1:
            self._score(out, known[:, 0], rel_type, (number, 0), rows[:, 0], side)
            return
        out.zero_()
        one = torch.empty_like(out)
        for section, weight in enumerate(self.section_weight):
            query = known[:, section if known.shape[1] > 1 else 0]
            column = section if rows.shape[1] > 1 else 0
            self._score(one, query, rel_type, (number, column), rows[:, column], side)
            out.add_(one, alpha=weight)

    def _score(
        self,
        out: Tensor,
        known: Tensor,
        rel_type: Tensor,
        place: tuple[int, int],
        candidates: Tensor,
        side: Side,
    ) -> None:
        if self.model.p == 2.0:

            def lengths() -> Tensor:
                if place not in self._lengths:
                    self._lengths[place] = square_lengths(candidates)
                return self._lengths[place]

            with full_precision(known):
                self.sheaf.pairwise_energy(
                    known, candidates, rel_type, side, lengths=lengths, out=out
                )
            self._finish(out)
            return

        def score(part: slice) -> None:
            out[:, part] = self.model.score_candidates(known, rel_type, candidates[part], side)

        run_chunks(score, chunks_of(len(candidates), candidates.shape[1]), candidates.numel())

    def _finish(self, squares: Tensor) -> None:
        """Replaces squared distances by scores."""
        if len(squares) >= _ROWS and squares.is_contiguous() and backend_of(squares) == "numba":
            from sheafprop.kernels.distance_loops import scores_of_squares

            bounds = np.arange(len(squares) + 1) * squares.shape[1]
            run_rows(scores_of_squares, (squares.numpy(), not self.model.squared), bounds, 4)
            return

        def finish(part: slice) -> None:
            some = squares[:, part].clamp_(min=0)
            if not self.model.squared:
                some.sqrt_()
            some.neg_()

        run_chunks(finish, chunks_of(squares.shape[1], 4 * len(squares)), 4 * squares.numel())


class KnownRows(NamedTuple):
    """Vectors of entities that are the same in every section.

    Args:
        table (Tensor): Trained vectors, ``[M, d]``.
        source (Tensor): The row of each known entity, in the order of their numbers.
        mask (Tensor): Known entities, bool ``[N]``.
    """

    table: Tensor
    source: Tensor
    mask: Tensor

    @classmethod
    def select(cls, table: Tensor, source: Tensor, mask: Tensor) -> "KnownRows":
        """Copies the rows of known entities unless they are most of the table."""
        if 2 * len(source) < len(table):
            table, source = table[source], torch.arange(len(source), device=source.device)
        return cls(table, source, mask)

    def join(self, free: Tensor) -> Tensor:
        """Returns all vectors ``[N, s, d]``, given those of the free entities ``[n, s, d]``."""
        x = free.new_empty(len(self.mask), *free.shape[1:])
        x[self.mask] = self.table[self.source].unsqueeze(1).to(free)
        x[~self.mask] = free
        return x


class SectionScorer:
    r"""Scores triples by the weighted sum of a model's scores over sections.

    .. math::
        f(h, r, t) = \sum_{i=1}^{s} a_i \, f_{\text{model}} \left( x_h^{(i)}, r, x_t^{(i)} \right)

    Args:
        model (KGEModel): The model that scores one section.
        x (Tensor): Vectors of all entities, ``[N, s, d]``.
        weight (sequence of float): :math:`a_i > 0`, one for each section.
        labels (sequence of str, optional): The labels of the entities, for messages.
        known (KnownRows, optional): Entities with the same vector in all sections. If given, ``x``
            holds only the vectors of the other entities, and the weights must add up to one.

    Raises:
        ValueError: If the numbers of weights and sections differ, or a vector is not finite. The
            message names the first such entity.
    """

    def __init__(
        self,
        model: KGEModel,
        x: Tensor,
        weight: Sequence[float],
        labels: Sequence[str] | None = None,
        known: KnownRows | None = None,
    ):
        if x.dim() != 3 or x.shape[1] != len(weight):
            raise ValueError(
                f"'x' must be [N, s, d] with a weight for each section (got {list(x.shape)} and "
                f"{len(weight)} weights)"
            )
        self.model = model
        ids = None if known is None else (~known.mask).nonzero().flatten()
        numbers = _Numbers() if labels is None else labels
        if named := name_nonfinite_rows(x, numbers, ids=ids):
            raise ValueError(f"the vector of {named} is not finite, so scores would be meaningless")
        self._groups: list[tuple[float, Tensor]] = []
        self._around: CandidateScorer | None = None
        if known is None:
            # Sections of one weight are scored together, in one matrix product.
            start = 0
            for value, members in groupby(weight):
                size = len(list(members))
                self._groups.append((value, x[:, start : start + size].contiguous()))
                start += size
            return
        rows = _Blocks((known.table.unsqueeze(1), x))
        sheaf = model.sheaf().map_tensors(torch.Tensor.detach)
        self._around = CandidateScorer(model, sheaf, rows, weight)
        # The row of each entity among those of the table and then those of x.
        self._column = torch.empty_like(known.mask, dtype=torch.int64)
        self._column[known.mask] = known.source
        self._column[~known.mask] = torch.arange(len(x), device=x.device) + len(known.table)
        # Where the known entities come first and are the whole table, no score has to move.
        self._in_order = torch.equal(self._column, torch.arange(len(rows), device=x.device))

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        """Scores all tails ``[B, N]`` for heads ``head_index`` and relations ``rel_type``."""
        if self._around is not None:
            return self._score_around(head_index, rel_type, "tail")
        return self._sum(lambda x: self.model.score_tails(x, head_index, rel_type))

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Scores all heads ``[B, N]`` for relations ``rel_type`` and tails ``tail_index``."""
        if self._around is not None:
            return self._score_around(tail_index, rel_type, "head")
        return self._sum(lambda x: self.model.score_heads(x, rel_type, tail_index))

    def _score_around(self, entity: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        """Scores ``[B, N]`` of all candidates at a side, where known ones have one vector."""
        around, column = self._around, self._column
        assert around is not None
        known, x = around.rows.blocks
        row = column[entity]
        free = row >= len(known)
        out = known.real.new_empty(len(row), len(column))
        # Queries of known entities are asked once, and not for every section.
        for mine, block, first in ((~free, known, 0), (free, x, len(known))):
            if bool(mine.any()):
                scores = around.scores(block[row[mine] - first], rel_type[mine], side)
                out[mine] = scores if self._in_order else scores[:, column]
        return out

    def _sum(self, score: Callable[[Tensor], Tensor]) -> Tensor:
        total: Tensor | None = None
        for value, x in self._groups:
            part = score(x) * value
            total = part if total is None else total + part
        assert total is not None
        return total


class _Blocks(NamedTuple):
    """Rows of known entities, and those of free ones, as a :class:`CandidateScorer` takes them."""

    blocks: tuple[Tensor, Tensor]

    def slices(self, size: int) -> Iterator[Tensor]:
        for block in self.blocks:
            yield from block.split(size)

    def __len__(self) -> int:
        return sum(map(len, self.blocks))


class _Numbers:
    """Names entities by their numbers."""

    def __getitem__(self, number: int, /) -> str:
        return str(number)
