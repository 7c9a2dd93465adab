"""Ranking: named protocols, the filter of known triples, metrics, and the edge-type baseline.

Recommended reading order: :func:`evaluate` (``rank_triples``) scores blocks of queries and counts
better and equal candidates (``rank_counts``); ``metrics`` makes one row of values of every query's
counts, under the rules of a protocol (``protocols``, ``sampled50``); :class:`RankingResult` keeps
the counts, :class:`RankMetrics` only the sums. To add a metric, add its column to the rows of
``metrics.query_values`` and its name to ``metrics.name_metrics``: all reports read both from there.
"""

from typing import TYPE_CHECKING, Any

from sheafprop.ranking.edge_type_heuristic import EdgeTypeHeuristic
from sheafprop.ranking.metrics import sampled50_draw, sampled50_expectation
from sheafprop.ranking.protocols import PROTOCOLS, Protocol, get_protocol
from sheafprop.ranking.rank_counts import RankCounts, rank_counts
from sheafprop.ranking.rank_triples import evaluate
from sheafprop.ranking.ranking_result import RankingResult
from sheafprop.ranking.triple_filter import TripleFilter
from sheafprop.renamed import find_renamed

if TYPE_CHECKING:
    from sheafprop.ranking.rank_metrics import RankMetrics

__all__ = [
    "PROTOCOLS",
    "EdgeTypeHeuristic",
    "Protocol",
    "RankCounts",
    "RankMetrics",
    "RankingResult",
    "TripleFilter",
    "evaluate",
    "get_protocol",
    "rank_counts",
    "sampled50_draw",
    "sampled50_expectation",
]


def __getattr__(name: str) -> Any:
    # Imported at first use: torchmetrics takes longer than many a command of ours.
    if name == "RankMetrics":
        from sheafprop.ranking.rank_metrics import RankMetrics

        return RankMetrics
    return find_renamed(__name__, name)


def __dir__() -> list[str]:
    return __all__
