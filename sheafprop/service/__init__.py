"""A trained model at work: propagation into new graphs, and the choice of how to propagate."""

from sheafprop.service.inductive_propagation import InductivePropagation
from sheafprop.service.propagation_search import PropagationSearch, Selection, inference_filter
from sheafprop.service.propagation_settings import PropagationSettings
from sheafprop.service.section_scorer import SectionScorer

__all__ = [
    "InductivePropagation",
    "PropagationSearch",
    "PropagationSettings",
    "SectionScorer",
    "Selection",
    "inference_filter",
]
