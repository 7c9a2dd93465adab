"""A trained model carried into a new graph: settings, their search, solving, ranking."""

from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch, Selection, inference_filter
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.rank_completion import CompletionResult, rank_completion
from sheafprop.inductive.section_scorer import SectionScorer

__all__ = [
    "CompletionResult",
    "InductivePropagation",
    "PropagationSearch",
    "PropagationSettings",
    "SectionScorer",
    "Selection",
    "inference_filter",
    "rank_completion",
]
