"""Ranking: named protocols, the filter of known triples, metrics, the edge-type baseline."""

from typing import TYPE_CHECKING, Any

from sheafprop.ranking.edge_type_heuristic import EdgeTypeHeuristic
from sheafprop.ranking.evaluate import evaluate
from sheafprop.ranking.protocols import PROTOCOLS, Protocol, describe, get_protocol
from sheafprop.ranking.rank_counts import RankCounts, rank_counts
from sheafprop.ranking.ranking_result import RankingResult
from sheafprop.ranking.sampled50 import sampled50_draw, sampled50_expectation
from sheafprop.ranking.triple_filter import TripleFilter

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
    "describe",
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
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
