"""Ranks the hard answers of logical queries, also for a baseline without vectors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.kernels.threads import run_rows
from sheafprop.query.query import QueryShape
from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_scorer import QueryScorer
from sheafprop.ranking import PROTOCOLS, EdgeTypeHeuristic, RankCounts
from sheafprop.ranking.metrics import name_metrics, query_values
from sheafprop.ranking.protocols import HITS_AT
from sheafprop.ranking.rank_counts import nan_error

Averaging = Literal["macro", "micro"]

# Hard answers of a query that are better compared one by one than placed in order.
_FEW = 96


@dataclass(frozen=True, eq=False)
class QueryRanking:
    """The position of every hard answer of every query among the entities that are not answers.

    Args:
        counts (RankCounts): Better, equal and all candidates of every pair of query and answer.
        query (Tensor): The query of every pair, ascending, int64.
        num_queries (int): Number of queries, including those without a hard answer.
        num_candidates (int): Number of ranked entities, including answers.
    """

    counts: RankCounts
    query: Tensor
    num_queries: int
    num_candidates: int

    def metrics(
        self, averaging: Averaging = "macro", k: tuple[int, ...] = HITS_AT
    ) -> dict[str, float]:
        """Computes Hits@k and mean reciprocal rank with realistic ranks and in expectation over
        ties.

        A realistic rank counts half of the equal scores as better, so that large groups of ties are
        misses. ``"expected_hits@k"`` and ``"expected_mrr"`` are expectations over the order of
        equal scores, which published results of an unstable sort approximate.

        Args:
            averaging (str, optional): ``"macro"`` takes the mean over the answers of a query, then
                over queries; ``"micro"`` pools all pairs of query and answer.
            k (tuple, optional): The values of k.

        Returns:
            The metrics, with ``"queries"`` and ``"answers"``, the numbers that were ranked.

        Raises:
            ValueError: If there is no hard answer.
        """
        if averaging not in ("macro", "micro"):
            raise ValueError(f"'averaging' must be 'macro' or 'micro' (got {averaging!r})")
        if len(self.counts) == 0:
            raise ValueError("there is no hard answer to rank, hence no metric")
        values = query_values(self.counts, PROTOCOLS["full"], "realistic", k)
        sizes = torch.bincount(self.query, minlength=self.num_queries)
        ranked, answers = int((sizes > 0).sum()), len(self.counts)
        if averaging == "macro":
            values /= sizes[self.query].unsqueeze(1)
        sums = values.sum(0)
        sums[0] = ranked if averaging == "macro" else answers
        metrics = name_metrics(sums.tolist(), k)
        del metrics["mean_rank"], metrics["amri"]
        return {**metrics, "queries": ranked, "answers": answers}

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({self.num_queries} queries, {len(self.counts)} answers, "
            f"{self.num_candidates} candidates)"
        )


@torch.no_grad()
def evaluate_queries(
    scorer: QueryScorer,
    batch: QueryBatch,
    easy: AnswerSets,
    hard: AnswerSets,
    candidates: Tensor,
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> QueryRanking:
    r"""Ranks every hard answer among the candidates, with all other answers of its query filtered.

    Args:
        scorer (QueryScorer): The scorer of the candidates.
        batch (QueryBatch): The queries.
        easy (AnswerSets): Answers that follow from the observed graph.
        hard (AnswerSets): All other answers, which are ranked.
        candidates (Tensor): The distinct ids of the entities of the observed graph.
        batch_size (int, optional): Queries per block. (default: chosen by the scorer)
        progress (bool, optional): Whether to show a progress bar once a second has passed.

    Raises:
        DivergenceError: If a score is NaN.
        ValueError: If numbers do not match, or a hard answer is not among the candidates.
    """
    if not len(batch) == len(easy) == len(hard):
        raise ValueError(
            f"expected answers to all {len(batch)} queries (got {len(easy)} easy and {len(hard)} "
            "hard sets)"
        )
    column = _columns(candidates, easy, hard)
    targets = AnswerSets(hard.start, column[hard.values])
    if (targets.values < 0).any():
        missing = int(hard.values[targets.values < 0][0])
        raise ValueError(f"the hard answer {missing} is not among the candidates")
    known = _known_columns(targets, easy, column)
    counts = np.zeros((3, len(hard.values)), dtype=np.int64)
    bar = tqdm(total=len(batch), disable=None if progress else True, leave=False, delay=1)
    with bar:
        for rows, scores in scorer.blocks(batch, candidates, batch_size=batch_size):
            index = rows.cpu().numpy()
            wanted = targets.select(index)
            part, bad = _count(scores, wanted, known.select(index))
            if bad.size:
                row = int(bad[0])
                raise nan_error(f"for query {index[row]} ({batch[rows[row : row + 1]]!r})")
            first = np.repeat(hard.start[index] - wanted.start[:-1], wanted.sizes)
            counts[:, first + np.arange(len(wanted.values))] = part
            bar.update(len(index))
    return QueryRanking(
        RankCounts(*torch.from_numpy(counts)),
        torch.from_numpy(hard.rows),
        len(batch),
        candidates.numel(),
    )


def _count(
    scores: Tensor, wanted: AnswerSets, known: AnswerSets
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Better, equal and all candidates of every wanted answer, and the rows with a NaN."""
    from sheafprop.query.loops import count_rows

    values = scores.cpu().contiguous().numpy()
    out = np.zeros((3, len(wanted.values)), dtype=np.int64)
    nan = np.zeros(len(values), dtype=np.bool_)
    sets = (wanted.start, wanted.values, known.start, known.values)
    bounds = np.arange(len(values) + 1) * values.shape[1]
    # Two answers at a time are compared with all candidates, or all of many at once.
    passes = 1 + min(len(wanted.values) // max(1, len(values)), _FEW) // 2
    run_rows(count_rows, (values, *sets, *out, _FEW, nan), bounds, passes)
    return out, np.flatnonzero(nan)


def _columns(candidates: Tensor, easy: AnswerSets, hard: AnswerSets) -> NDArray[np.int32]:
    """The column of every entity, -1 for those that are not candidates."""
    ids = candidates.cpu().numpy()
    if ids.ndim != 1 or len(np.unique(ids)) != len(ids):
        raise ValueError("'candidates' must be distinct entity ids")
    largest = [int(part.max()) for part in (ids, easy.values, hard.values) if part.size]
    column = np.full(max(largest, default=-1) + 1, -1, dtype=np.int32)
    column[ids] = np.arange(len(ids))
    return column


def _known_columns(targets: AnswerSets, easy: AnswerSets, column: NDArray[np.int32]) -> AnswerSets:
    """The columns of all answers to every query, the targets first."""
    rows = np.concatenate([targets.rows, easy.rows])
    values = np.concatenate([targets.values, column[easy.values]])
    rows, values = rows[values >= 0], values[values >= 0]
    sizes = np.bincount(rows, minlength=len(targets))
    return AnswerSets.from_sizes(sizes, values[np.argsort(rows, kind="stable")])


_BLOCK_SCORES = 2**23


class EdgeTypeScorer(EdgeTypeHeuristic, QueryScorer):
    r"""The edge-type heuristic for queries: entities observed at the end of the last relation score
    1.

    For intersections, a candidate must be observed at the end of all branches, for unions of any;
    negated branches are ignored. Entities and earlier relations are ignored, so a scorer that ranks
    better uses more than types. From Galkin et al., "Inductive Logical Query Answering in Knowledge
    Graphs" (2022).

    Args:
        triples (Tensor): The observed triples, ``[m, 3]``.
        num_nodes (int): The number of entities.
        num_relations (int): The number of relations :math:`R`; ids from :math:`R` on denote inverse
            ones.
    """

    def __init__(self, triples: Tensor, num_nodes: int, num_relations: int) -> None:
        EdgeTypeHeuristic.__init__(self, triples, num_nodes, num_relations)
        QueryScorer.__init__(self, num_nodes, num_relations)

    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """As :meth:`QueryScorer.blocks`, scores 0 or 1.

        Args:
            batch, candidates, batch_size: See :meth:`QueryScorer.blocks`.
        """
        batch.check_ids(self.num_nodes, self.num_relations)
        everyone = torch.arange(self.num_nodes) if candidates is None else candidates
        size = batch_size or max(1, _BLOCK_SCORES // max(1, everyone.numel()))
        for rows in torch.arange(len(batch)).split(size):
            yield rows, self._match(batch.shape, batch.slots[rows], everyone).float()

    def _match(self, shape: QueryShape, slots: Tensor, candidates: Tensor) -> Tensor:
        if shape.operator == "anchor":
            return candidates == slots
        if shape.operator == "not":
            return torch.ones(len(slots), candidates.numel(), dtype=torch.bool)
        if shape.operator == "via":
            relations, index = torch.unique(slots[:, -1], return_inverse=True)
            return self.is_seen(relations)[:, candidates][index]
        parts = torch.stack(
            [
                self._match(branch, slots[:, own], candidates)
                for branch, own in zip(shape.branches, shape.branch_slots, strict=True)
            ]
        )
        return parts.all(0) if shape.operator == "and" else parts.any(0)
