"""Counts, for every query, the candidates that score better than or as well as the true entity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.threads import run_rows
from sheafprop.ranking.protocols import Ties, check_ties

#: The share of equal scores that each rule counts as better.
TIE_SHARES: dict[Ties, float] = {"optimistic": 0.0, "realistic": 0.5, "pessimistic": 1.0}

_CACHED_SCORES = 2**18


@dataclass(frozen=True)
class RankCounts:
    r"""The position of the true entity of every query among its filtered candidates.

    These three numbers determine the rank among all candidates and the distribution of the rank
    among sampled ones, for all protocols.

    Args:
        better (torch.Tensor): The number :math:`b` of candidates with a strictly better score.
        ties (torch.Tensor): The number :math:`e` of candidates with an equal score, without the
            true entity.
        candidates (torch.Tensor): The number :math:`n` of candidates without the true entity.

    Raises:
        ValueError: If the three are not int64 vectors of the same length with :math:`b, e \ge 0`
            and :math:`b + e \le n`.
    """

    better: Tensor
    ties: Tensor
    candidates: Tensor

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value.dim() != 1 or value.dtype != torch.long or value.shape != self.better.shape:
                raise ValueError(
                    f"Expected better, ties and candidates as int64 vectors of one length (got "
                    f"{name} of shape {tuple(value.shape)}, {value.dtype})"
                )
        wrong = (self.better < 0) | (self.ties < 0) | (self.better + self.ties > self.candidates)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"Expected better, ties >= 0 and better + ties <= candidates (got "
                f"{int(self.better[row])}, {int(self.ties[row])} and {int(self.candidates[row])} "
                f"in row {row})"
            )

    @classmethod
    def cat(cls, parts: Sequence[RankCounts]) -> RankCounts:
        r"""Concatenates the counts of several batches, :obj:`parts`."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(torch.cat, columns)) if parts else cls(*torch.empty(3, 0, dtype=torch.long))

    def __len__(self) -> int:
        return self.better.numel()

    def __getitem__(self, index: Tensor) -> RankCounts:
        return RankCounts(*(value[index] for value in vars(self).values()))

    def cpu(self) -> RankCounts:
        r"""Returns the counts on the CPU."""
        return RankCounts(*(value.cpu() for value in vars(self).values()))

    def ranks(self, ties: Ties = "realistic") -> Tensor:
        r"""Returns the rank of every true entity among all candidates, as float64.

        Args:
            ties (str, optional): :obj:`"optimistic"` places the true entity before equal scores
                (:math:`1 + b`), :obj:`"pessimistic"` behind them (:math:`1 + b + e`), and
                :obj:`"realistic"` takes the mean of both. (default: :obj:`"realistic"`)
        """
        check_ties(ties)
        return 1.0 + self.better.double() + TIE_SHARES[ties] * self.ties.double()

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({len(self)})"


@dataclass(frozen=True)
class CandidateShard:
    r"""The candidates from :obj:`first` to :obj:`end` of a ranking that several processes share.

    Args:
        first (int): The first entity that this process scores.
        end (int): The entity after the last one.
        highest (callable): Takes, element by element, the maximum of a tensor over all processes.
        total (callable): Adds up an int64 tensor over all processes.
    """

    first: int
    end: int
    highest: Callable[[Tensor], Tensor]
    total: Callable[[Tensor], Tensor]

    def true_scores(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the score :math:`(B, 1)` of the true entity of every row, which one of the
        processes has computed, and which rows are those of this one."""
        own = (target >= self.first) & (target < self.end)
        true = scores.new_full((len(scores), 1), -torch.inf)
        true[own] = scores[own].gather(1, target[own].unsqueeze(1) - self.first)
        return self.highest(true), own


def nan_rows(scores: Tensor) -> Tensor:
    r"""Returns the rows of :obj:`scores` that hold a NaN."""
    if not scores.is_floating_point() or scores.numel() == 0:
        return torch.empty(0, dtype=torch.long, device=scores.device)
    # A row without NaN can only sum to NaN through infinities: look closer at those rows alone.
    suspects = scores.sum(dim=1).isnan().nonzero().view(-1)
    return suspects[scores[suspects].isnan().any(dim=1)]


def nan_error(where: str) -> DivergenceError:
    r"""Returns the error for NaN scores, with the place and the likely causes."""
    return DivergenceError(
        f"NaN score {where}: a NaN cannot be ranked. The vectors or the relation parameters are no "
        f"longer finite, most likely because training diverged (lower the learning rate) or the "
        f"propagation did (lower step_size)"
    )


def rank_counts(
    scores: Tensor, target: Tensor, filter_pairs: tuple[Tensor, Tensor] | None = None
) -> RankCounts:
    r"""Counts the candidates that score better than, or equal to, the true one of every row.

    Scores are compared with that of the true entity in the same row, so that both come from the
    same computation. Infinite scores are allowed.

    Args:
        scores (torch.Tensor): One row of candidate scores per query, higher is better.
        target (torch.Tensor): The column of the true entity of every row.
        filter_pairs (tuple, optional): Rows and columns of the candidates to exclude, as returned
            by :meth:`TripleFilter.tails`. The true entity is never excluded, and repeated pairs
            count once. (default: :obj:`None`)

    Shapes:
        - **input:** scores :math:`(B, C)`, target :math:`(B)`, filter pairs :math:`(p), (p)`
        - **output:** three vectors :math:`(B)`

    Raises:
        DivergenceError: If a score is NaN; the rows are named.
        ValueError: If shapes or columns do not match.
    """
    if scores.dim() != 2 or scores.is_complex():
        raise ValueError(
            f"Expected real scores of shape [B, C] (got {tuple(scores.shape)}, {scores.dtype})"
        )
    num_rows, num_columns = scores.shape
    if target.shape != (num_rows,):
        raise ValueError(f"Expected {num_rows} targets (got shape {tuple(target.shape)})")
    _check_range(target, num_columns, "target columns")
    wrong = nan_rows(scores)
    if wrong.numel() > 0:
        named = ", ".join(str(row) for row in wrong[:5].tolist())
        more = ", ..." if wrong.numel() > 5 else ""
        raise nan_error(f"in row {named}{more} ({wrong.numel()} of {num_rows} rows)")

    if filter_pairs is not None:
        row, column = filter_pairs
        if row.shape != column.shape or row.dim() != 1:
            raise ValueError(
                f"Expected filter pairs as two vectors of one length (got {tuple(row.shape)} rows "
                f"and {tuple(column.shape)} columns)"
            )
        _check_range(row, num_rows, "filter rows")
        _check_range(column, num_columns, "filter columns")
        key = torch.unique(row * num_columns + column)
        filter_pairs = key // num_columns, key % num_columns
    return count_candidates(scores, target, filter_pairs)


def count_candidates(
    scores: Tensor,
    target: Tensor,
    filter_pairs: tuple[Tensor, Tensor] | None,
    shard: CandidateShard | None = None,
) -> RankCounts:
    r"""Does the counting of :func:`rank_counts` for checked arguments and distinct pairs.

    With a shard, scores are those of its candidates, and so are the counts.
    """
    first = 0 if shard is None else shard.first
    if shard is None:
        true, own = scores.gather(1, target.unsqueeze(1)), torch.ones_like(target)
    else:
        true, own = shard.true_scores(scores, target)
    better, ties = _compare(scores, true)
    ties -= own.long()
    candidates = scores.size(1) - own.long()
    if filter_pairs is not None:
        row, column = filter_pairs
        other = column != target[row]
        if shard is not None:
            other &= (column >= shard.first) & (column < shard.end)
        row, column = row[other], column[other] - first
        score, true_score = scores[row, column], true.view(-1)[row]
        better.index_add_(0, row, (score > true_score).long(), alpha=-1)
        ties.index_add_(0, row, (score == true_score).long(), alpha=-1)
        candidates.index_add_(0, row, torch.ones_like(row), alpha=-1)
    return RankCounts(better, ties, candidates)


def _compare(scores: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """How many scores of each row are greater than, and equal to, that of the true entity."""
    if backend_of(scores) == "numba":
        from sheafprop.kernels.distance_loops import compare_rows

        better, equal = torch.empty(2, scores.size(0), dtype=torch.long)
        arrays = (scores.detach().contiguous(), true.detach().view(-1), better, equal)
        bounds = np.arange(scores.size(0) + 1) * scores.size(1)
        run_rows(compare_rows, tuple(array.numpy() for array in arrays), bounds, 1)
        return better, equal
    # Blocks that stay in the cache are several times faster to compare and sum.
    rows = max(1, _CACHED_SCORES // max(1, scores.size(1)))
    blocks = list(zip(scores.split(rows), true.split(rows), strict=True))
    better = torch.cat([(s > t).sum(dim=1, dtype=torch.int32) for s, t in blocks]).long()
    equal = torch.cat([(s == t).sum(dim=1, dtype=torch.int32) for s, t in blocks]).long()
    return better, equal


def _check_range(index: Tensor, bound: int, what: str) -> None:
    if index.numel() > 0 and (int(index.min()) < 0 or int(index.max()) >= bound):
        raise ValueError(
            f"Expected {what} from 0 to {bound - 1} (got {int(index.min())} to {int(index.max())})"
        )
