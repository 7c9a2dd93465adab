from collections.abc import Sequence

import torch
from torch import Tensor

from sheafprop.kernels.pairwise_squares import chunks_of, square_lengths
from sheafprop.kernels.threads import run_chunks
from sheafprop.kge.base import KGEModel, Side
from sheafprop.pretrained.blocks import RowBlocks
from sheafprop.sheaf import RelationSheaf

# Scores that are held at once.
_SCORES = 2**24


class CandidateScorer:
    r"""Scores all entities of a model as heads or tails, without a copy of their vectors.

    Where the candidates' maps keep lengths (TransE, RotatE) a query is one product of the table
    with a vector, as the squared lengths of the rows are kept. Other diagonal maps take one pass
    over the table, and dense maps go through it in pieces that fit the cache.

    Args:
        model (KGEModel): The model that scores one section.
        sheaf (RelationSheaf): Its sheaf.
        rows (RowBlocks): Vectors of all entities, ``[n, s, d]`` in blocks.
        section_weight (sequence of float): The weight of each section.
    """

    def __init__(
        self,
        model: KGEModel,
        sheaf: RelationSheaf,
        rows: RowBlocks,
        section_weight: Sequence[float],
    ):
        self.model, self.sheaf = model, sheaf
        self.rows, self.section_weight = rows, section_weight
        self._lengths: dict[tuple[int, int], Tensor] = {}

    def block_size(self) -> int:
        """Queries to score at once."""
        return max(1, _SCORES // max(1, len(self.rows)))

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
        for number, block in enumerate(self.rows.blocks):
            part = out[:, offset : offset + len(block)]
            sections = max(known.shape[1], block.shape[1])
            if sections == 1:
                self._score(part, known[:, 0], rel_type, number, 0, side)
            else:
                part.zero_()
                one = torch.empty_like(part)
                for section, weight in enumerate(self.section_weight):
                    query = known[:, section if known.shape[1] > 1 else 0]
                    column = section if block.shape[1] > 1 else 0
                    self._score(one, query, rel_type, number, column, side)
                    part.add_(one, alpha=weight)
            offset += len(block)
        return out

    def _score(
        self, out: Tensor, known: Tensor, rel_type: Tensor, number: int, section: int, side: Side
    ) -> None:
        candidates = self.rows.blocks[number][:, section]
        if self.model.p == 2.0:

            def lengths() -> Tensor:
                place = number, section
                if place not in self._lengths:
                    self._lengths[place] = square_lengths(candidates)
                return self._lengths[place]

            self.sheaf.pairwise_energy(known, candidates, rel_type, side, lengths=lengths, out=out)
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
