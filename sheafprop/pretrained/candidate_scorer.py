from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.threads import SpareMemory, run_chunks, run_rows
from sheafprop.kge.base import KGEModel, Side
from sheafprop.kge.distance import real_rows
from sheafprop.pretrained.row_blocks import RowBlocks
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, RelationSheaf

# Candidates whose vectors, mapped or not, stay in the cache.
_CHUNK_NUMBERS = 2**19
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
        if self.model.p == 2.0 and self._squares(out, known, rel_type, (number, section), side):
            self._finish(out)
            return

        def score(part: slice) -> None:
            out[:, part] = self.model.score_candidates(known, rel_type, candidates[part], side)

        run_chunks(score, _chunks(len(candidates), candidates.shape[1]), candidates.numel())

    def _finish(self, squares: Tensor) -> None:
        """Replaces squared distances by scores."""

        def finish(part: slice) -> None:
            some = squares[:, part].clamp_(min=0)
            if not self.model.squared:
                some.sqrt_()
            some.neg_()

        run_chunks(finish, _chunks(squares.shape[1], 4 * len(squares)), 4 * squares.numel())

    def _squares(
        self, out: Tensor, known: Tensor, rel_type: Tensor, place: tuple[int, int], side: Side
    ) -> bool:
        """Squared distances of candidates to where the maps lead, if there is a short way."""
        if not isinstance(self.sheaf, IdentitySheaf | DiagonalSheaf | DenseSheaf):
            return False
        candidates = self.rows.blocks[place[0]][:, place[1]]
        target = self.sheaf.restrict(known, rel_type, "head" if side == "tail" else "tail")
        shift = self.sheaf.translation_of(rel_type)
        if shift is not None:
            target = target + shift if side == "tail" else target - shift
        if isinstance(self.sheaf, DenseSheaf):
            matrices = getattr(self.sheaf, side)
            for relation in rel_type.unique().tolist():
                rows = (rel_type == relation).nonzero().flatten()
                out[rows] = _mapped_squares(candidates, matrices[relation], target[rows])
            return True
        table = None if isinstance(self.sheaf, IdentitySheaf) else getattr(self.sheaf, side)
        maps = None if table is None else table[rel_type]
        if maps is None or _keep_lengths(maps):
            if place not in self._lengths:
                self._lengths[place] = _square_lengths(real_rows(candidates))
            target = target if maps is None else target * maps.conj()
            _near_squares(out, real_rows(candidates), self._lengths[place], real_rows(target))
            return True
        if maps.is_complex() or backend_of(candidates) != "numba":
            return False
        _scaled_squares(out, candidates, maps, target)
        return True


def _keep_lengths(maps: Tensor) -> bool:
    return bool(((maps.abs() - 1).abs() <= 8 * torch.finfo(maps.real.dtype).eps).all())


def _square_lengths(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1).square_()


def _near_squares(out: Tensor, rows: Tensor, squares: Tensor, target: Tensor) -> None:
    own = target.square().sum(1, keepdim=True)
    if len(target) != 1:
        torch.addmm(squares.unsqueeze(0), target, rows.T, alpha=-2, out=out).add_(own)
        return

    def multiply(part: slice) -> None:
        near = out[0, part]
        torch.addmv(squares[part], rows[part], target[0], alpha=-2, out=near).add_(own[0])

    # Nothing is read twice, so that chunks may exceed the cache.
    run_chunks(multiply, _chunks(len(rows), max(1, rows.shape[1] // 8)), rows.numel())


def _scaled_squares(out: Tensor, rows: Tensor, maps: Tensor, target: Tensor) -> None:
    from sheafprop.kernels.distance_loops import scaled_squares

    arrays = (rows.numpy(), maps.contiguous().numpy(), target.contiguous().numpy(), out.numpy())
    run_rows(scaled_squares, arrays, np.arange(len(rows) + 1) * len(maps), rows.shape[1])


def _mapped_squares(rows: Tensor, matrix: Tensor, target: Tensor) -> Tensor:
    out = target.new_empty(len(target), len(rows))
    chunks = _chunks(len(rows), max(matrix.shape))
    spare = SpareMemory(chunks[0].stop * len(matrix) if chunks else 0, target)

    def measure(part: slice) -> None:
        with spare.take(part.stop - part.start, len(matrix)) as image:
            if len(target) == 1:
                torch.addmm(target, rows[part], matrix.T, beta=-1, out=image)
                torch.linalg.vector_norm(image, dim=1, out=out[0, part])
                out[0, part].square_()
            else:
                torch.mm(rows[part], matrix.T, out=image)
                _near_squares(out[:, part], image, _square_lengths(image), target)

    run_chunks(measure, chunks, matrix.numel() * len(rows))
    return out


def _chunks(size: int, width: int) -> list[slice]:
    step = max(256, _CHUNK_NUMBERS // width)
    return [slice(i, min(i + step, size)) for i in range(0, size, step)]
