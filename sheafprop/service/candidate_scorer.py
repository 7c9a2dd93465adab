from collections.abc import Sequence

import torch
from torch import Tensor

from sheafprop.kge.base import KGEModel, Side
from sheafprop.kge.distance import real_rows
from sheafprop.service.row_blocks import RowBlocks
from sheafprop.sheaf import DiagonalSheaf, IdentitySheaf, RelationSheaf

# Candidates whose vectors, mapped or not, stay in the cache.
_CHUNK_NUMBERS = 2**19
# Scores that are held at once.
_SCORES = 2**24


class CandidateScorer:
    r"""Scores all entities of a model as heads or tails, without a copy of their vectors.

    Where the candidates' maps keep lengths (TransE, RotatE) a query is one product of the table
    with a vector, as the squared lengths of the rows are kept; other maps go through the table in
    pieces that fit the cache.

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
        self._squares: dict[int, Tensor] = {}

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
        query = self._query(known, rel_type, side)
        if query is not None:
            self._score_by_product(out, query, candidates, (number, section))
            return
        step = max(256, _CHUNK_NUMBERS // candidates.shape[1])
        for start in range(0, len(candidates), step):
            part = slice(start, start + step)
            out[:, part] = self.model.score_candidates(known, rel_type, candidates[part], side)

    def _score_by_product(
        self, out: Tensor, query: Tensor, candidates: Tensor, key: tuple[int, int]
    ) -> None:
        rows, query = real_rows(candidates), real_rows(query)
        place = key[0] * len(self.section_weight) + key[1]
        if place not in self._squares:
            self._squares[place] = torch.linalg.vector_norm(rows, dim=1).square_()
        squares = self._squares[place]
        if len(query) == 1:
            torch.addmv(squares, rows, query[0], alpha=-2, out=out[0])
            out += query.square().sum()
        else:
            torch.addmm(squares.unsqueeze(0), query, rows.T, alpha=-2, out=out)
            out += query.square().sum(1, keepdim=True)
        out.clamp_(min=0)
        if not self.model.squared:
            out.sqrt_()
        out.neg_()

    def _query(self, known: Tensor, rel_type: Tensor, side: Side) -> Tensor | None:
        """Points whose distances to the plain candidates are the scores; None if there are none."""
        if self.model.p != 2.0 or not isinstance(self.sheaf, IdentitySheaf | DiagonalSheaf):
            return None
        other: Side = "head" if side == "tail" else "tail"
        target = self.sheaf.restrict(known, rel_type, other)
        shift = self.sheaf.translation_of(rel_type)
        if shift is not None:
            target = target + shift if side == "tail" else target - shift
        table = None if isinstance(self.sheaf, IdentitySheaf) else getattr(self.sheaf, side)
        if table is None:
            return target
        maps = table[rel_type]
        keeps = (maps.abs() - 1).abs() <= 8 * torch.finfo(maps.real.dtype).eps
        return target * maps.conj() if bool(keeps.all()) else None
