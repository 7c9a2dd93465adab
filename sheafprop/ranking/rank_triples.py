"""Ranks the true entity of every triple among all candidates, block by block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.progress import progress_bar
from sheafprop.ranking.protocols import Side, Sides
from sheafprop.ranking.rank_counts import (
    CandidateShard,
    RankCounts,
    count_candidates,
    nan_error,
    nan_rows,
)
from sheafprop.ranking.ranking_result import RankingResult
from sheafprop.ranking.triple_filter import TripleFilter, check_triples

ScoreFunction = Callable[[Tensor, Tensor], Tensor]

_SCORES_PER_BLOCK = 2**23  # 32 MB of float32 scores
# A table that is larger than the caches is read once for so many queries at least.
_LEAST_QUERIES = 8


@torch.no_grad()
def evaluate(
    score_tails: ScoreFunction | None,
    score_heads: ScoreFunction | None,
    triples: Tensor,
    triple_filter: TripleFilter | None = None,
    *,
    num_nodes: int | None = None,
    sides: Sides = "both",
    batch_size: int | None = None,
    num_dropped: int = 0,
    test_set: str | None = None,
    progress: bool = False,
    entity_labels: Sequence[str] | None = None,
    shard: CandidateShard | None = None,
) -> RankingResult:
    r"""Ranks every triple on both sides and returns the counts from which all protocols are
    computed.

    Queries are sorted by relation, equal queries are scored once, and scores are compared in
    blocks, so memory is bounded by :obj:`batch_size` times the number of entities. The result does
    not depend on the block size unless the scores do.

    .. note::
        :meth:`torch_geometric.nn.kge.KGEModel.test` ranks tails only and does not filter; this
        corresponds to :obj:`sides="tail"` and :obj:`triple_filter=None`. The default ranks both
        sides, and a filter excludes known true triples.

    Args:
        score_tails (callable, optional): Maps head ids and relation ids :math:`(B)` to scores
            :math:`(B, N)`, one column per entity, higher is better. :obj:`None` if tails are not
            ranked.
        score_heads (callable, optional): The same for relation ids and tail ids.
        triples (torch.Tensor): The triples :math:`(m, 3)` to rank. Queries are on the same device.
        triple_filter (TripleFilter, optional): The known true triples to exclude; :obj:`None`
            for a raw ranking. (default: :obj:`None`)
        num_nodes (int, optional): The number of entities; that of the filter if :obj:`None`.
            (default: :obj:`None`)
        sides (str, optional): :obj:`"both"`, :obj:`"tail"` or :obj:`"head"`.
            (default: :obj:`"both"`)
        batch_size (int, optional): The number of queries per block; chosen from the number of
            entities if :obj:`None`. (default: :obj:`None`)
        num_dropped (int, optional): The number of triples that could not be ranked, for the report.
            (default: :obj:`0`)
        test_set (str, optional): The name of the triples, for the protocol box.
            (default: :obj:`None`)
        progress (bool, optional): Whether to show a progress bar once a second has passed.
            (default: :obj:`False`)
        entity_labels (sequence of str, optional): The labels of all entities, for messages.
            (default: :obj:`None`)
        shard (CandidateShard, optional): The candidates that the functions score, if several
            processes call this function together; each process returns the counts over all
            candidates. (default: :obj:`None`)

    Raises:
        DivergenceError: If a score is NaN; the message names the first query and candidate.
        ValueError: If ids are out of range or shapes do not match.
    """
    if triple_filter is not None:
        if num_nodes is not None and num_nodes != triple_filter.num_nodes:
            raise ValueError(
                f"Expected the number of entities of the filter, {triple_filter.num_nodes} "
                f"(got num_nodes={num_nodes})"
            )
        num_nodes = triple_filter.num_nodes
    if num_nodes is None:
        raise ValueError("Expected num_nodes for a raw ranking, without a filter (got None)")
    if sides not in ("head", "tail", "both"):
        raise ValueError(f"Expected sides among head, tail, both (got {sides!r})")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"Expected batch_size >= 1 (got {batch_size})")
    if num_dropped < 0:
        raise ValueError(f"Expected num_dropped >= 0 (got {num_dropped})")
    num_relations = triple_filter.num_relations if triple_filter is not None else 2**31
    check_triples(triples, num_nodes, num_relations)

    block = batch_size or max(_LEAST_QUERIES, _SCORES_PER_BLOCK // max(1, num_nodes))
    functions: dict[Side, ScoreFunction | None] = {"head": score_heads, "tail": score_tails}
    counts: dict[Side, RankCounts] = {}
    for side, score in functions.items():
        if sides not in (side, "both"):
            continue
        if score is None:
            raise ValueError(f"Expected score_{side}s for sides={sides!r} (got None)")
        ranking = _Side(side, score, triple_filter, num_nodes, entity_labels, shard)
        counts[side] = ranking.rank(triples, block, progress)
    return RankingResult(
        triples=triples.cpu(),
        counts=counts,
        num_candidates=num_nodes,
        filter="none (raw ranking)" if triple_filter is None else triple_filter.describe(),
        num_dropped=num_dropped,
        test_set=test_set,
    )


@dataclass(frozen=True)
class _Side:
    side: Side
    score: ScoreFunction
    triple_filter: TripleFilter | None
    num_nodes: int
    labels: Sequence[str] | None
    shard: CandidateShard | None = None

    def rank(self, triples: Tensor, batch_size: int, progress: bool) -> RankCounts:
        known_end, true_end = (0, 2) if self.side == "tail" else (2, 0)
        # Sorted by relation first: dense maps then meet few relations in a block.
        key = triples[:, 1] * self.num_nodes + triples[:, known_end]
        query, position, size = torch.unique(key, return_inverse=True, return_counts=True)
        order = torch.argsort(position)
        position, true = position[order], triples[order, true_end]
        relation, entity = query // self.num_nodes, query % self.num_nodes
        end = size.cumsum(0).tolist()

        parts: list[RankCounts] = []
        start = 0
        name = f"rank {self.side}s"
        with progress_bar(len(triples), desc=name, unit="triple", shown=progress) as bar:
            for first in range(0, query.numel(), batch_size):
                block = slice(first, first + batch_size)
                scores = self.scores(entity[block], relation[block])
                stop = end[min(first + batch_size, len(end)) - 1]
                for low in range(start, stop, batch_size):
                    rows = slice(low, min(low + batch_size, stop))
                    of = position[rows]
                    row, known = self.filter_pairs(entity[of], relation[of])
                    once = stop - start == len(scores)  # one triple per query: nothing to repeat
                    counts = count_candidates(
                        scores if once else scores[(of - first).to(scores.device)],
                        true[rows].to(scores.device),
                        (row.to(scores.device), known.to(scores.device)),
                        self.shard,
                    )
                    parts.append(counts.cpu())
                bar.update(stop - start)
                start = stop
        found = RankCounts.cat(parts)
        if self.shard is not None:
            found = RankCounts(*self.shard.total(torch.stack(list(vars(found).values()))))
        return found[torch.argsort(order).cpu()]

    def scores(self, entity: Tensor, relation: Tensor) -> Tensor:
        """Scores of queries; a NaN is refused, by the first query and the entities that have it."""
        tail = self.side == "tail"
        scores = self.score(entity, relation) if tail else self.score(relation, entity)
        shard = self.shard
        columns = self.num_nodes if shard is None else shard.end - shard.first
        if scores.shape != (entity.numel(), columns) or scores.is_complex():
            raise ValueError(
                f"Expected score_{self.side}s to return real scores of shape "
                f"{(entity.numel(), columns)}, one column per entity "
                f"(got {tuple(scores.shape)}, {scores.dtype})"
            )
        wrong = nan_rows(scores)
        if wrong.numel() == 0:
            return scores
        known, r = self.name(int(entity[wrong[0]])), int(relation[wrong[0]])
        query = f"({known}, {r}, ?)" if tail else f"(?, {r}, {known})"
        bad = scores[wrong[0]].isnan()
        if bool(bad.all()):
            where = "for every candidate, so look at the entity and the relation of the query"
        else:
            first = self.name(int(bad.nonzero()[0]) + (0 if shard is None else shard.first))
            where = f"for entity {first} and {int(bad.sum()) - 1} more candidates"
        raise nan_error(f"for the query {query} and {wrong.numel() - 1} more of its block, {where}")

    def filter_pairs(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and columns of the known answers of queries."""
        if self.triple_filter is None:
            return entity.new_empty(0), entity.new_empty(0)
        if self.side == "tail":
            return self.triple_filter.tails(entity, relation)
        return self.triple_filter.heads(relation, entity)

    def name(self, entity: int) -> str:
        return str(entity) if self.labels is None else f"{entity} ({self.labels[entity]!r})"
