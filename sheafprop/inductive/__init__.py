"""Applies trained models to new graphs: propagation, search of settings, episodes, ranking."""

from sheafprop.inductive.answer_counts import AnswerCounts
from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.episode_scorer import EpisodeScorer, episode_loss
from sheafprop.inductive.feature_map import FeatureMap
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch, Selection, inference_filter
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import LogProximity, ProximityScorer, ProximitySettings
from sheafprop.inductive.proximity_search import ProximitySearch
from sheafprop.inductive.rank_completion import CompletionResult, rank_completion
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.inductive.training_graph import training_graph_as_new

__all__ = [
    "AnswerCounts",
    "CompletionResult",
    "EpisodeModel",
    "EpisodeScorer",
    "EpisodeSettings",
    "FeatureMap",
    "InductivePropagation",
    "LogProximity",
    "PropagationSearch",
    "PropagationSettings",
    "ProximityScorer",
    "ProximitySearch",
    "ProximitySettings",
    "SectionScorer",
    "Selection",
    "episode_loss",
    "inference_filter",
    "rank_completion",
    "training_graph_as_new",
]
