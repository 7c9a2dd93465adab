"""Ranking: named protocols, the filter of known triples, metrics, the edge-type baseline."""

from sheafprop.ranking.edge_type_heuristic import EdgeTypeHeuristic
from sheafprop.ranking.evaluate import evaluate
from sheafprop.ranking.protocols import PROTOCOLS, Protocol, describe, get_protocol
from sheafprop.ranking.rank_counts import RankCounts, rank_counts
from sheafprop.ranking.rank_metrics import RankMetrics
from sheafprop.ranking.ranking_result import RankingResult
from sheafprop.ranking.sampled50 import sampled50_draw, sampled50_expectation
from sheafprop.ranking.triple_filter import TripleFilter

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
