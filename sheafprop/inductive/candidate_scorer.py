from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sheafprop.kernels.pairwise_squares import chunks_of, square_lengths
from sheafprop.kernels.rows import full_precision
from sheafprop.kernels.threads import run_chunks
from sheafprop.kge.base import KGEModel, Side
from sheafprop.sheaf import RelationSheaf

# Scores that are held at once, and numbers of the vectors that are scored at once: a piece of the
# table that several threads share, read once from where it lies.
_SCORES = 2**24
_NUMBERS = 2**25


class Rows(Protocol):
    """Vectors of entities in blocks ``[n_i, s_i, d]``; ``s_i`` is 1 where all sections agree."""

    @property
    def blocks(self) -> Sequence[Tensor]: ...

    def slices(self, size: int) -> Iterator[Tensor]: ...

    def __len__(self) -> int: ...


class CandidateScorer:
    r"""Scores all entities of a model as heads or tails, without a copy of their vectors.

    Where the candidates' maps keep lengths (TransE, RotatE) a query is one product of the table
    with a vector, as the squared lengths of the rows are kept. Other diagonal maps take one pass
    over the table, and dense maps go through it in pieces that fit the cache.

    Args:
        model (KGEModel): The model that scores one section.
        sheaf (RelationSheaf): Its sheaf.
        rows (Rows): Vectors of all entities, in blocks.
        section_weight (sequence of float): The weight of each section; they add up to one.
        step (int, optional): Entities that are scored at once: scores of a piece do not depend on
            the others. (default: by the width of the first block)
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
        """Queries whose scores of all entities may be held at once."""
        return max(1, _SCORES // max(1, len(self.rows)))

    def queries_at_once(self) -> int:
        """Queries to score in one pass through the blocks."""
        return max(1, _SCORES // self.step)

    @torch.no_grad()
    def scores(self, known: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        """Scores ``[B, N]`` of all entities at a side of triples.

        Args:
            known (Tensor): Vectors ``[B, s, d]`` at the other side.
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
        """The same scores block by block: the first entity of a block, and ``[B, n]``."""
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

        def finish(part: slice) -> None:
            some = squares[:, part].clamp_(min=0)
            if not self.model.squared:
                some.sqrt_()
            some.neg_()

        run_chunks(finish, chunks_of(squares.shape[1], 4 * len(squares)), 4 * squares.numel())
