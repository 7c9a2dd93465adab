"""A trained model at work: propagation into new graphs, and the choice of how to propagate."""

from sheafprop.service.extension_report import ExtensionReport
from sheafprop.service.free_propagation import FreePropagation
from sheafprop.service.inductive_propagation import InductivePropagation
from sheafprop.service.propagation_search import PropagationSearch, Selection, inference_filter
from sheafprop.service.propagation_settings import PropagationSettings
from sheafprop.service.rank_completion import CompletionResult, rank_completion
from sheafprop.service.removal_report import RemovalReport
from sheafprop.service.section_scorer import SectionScorer
from sheafprop.service.sheaf_model import SheafModel

__all__ = [
    "CompletionResult",
    "ExtensionReport",
    "FreePropagation",
    "InductivePropagation",
    "PropagationSearch",
    "PropagationSettings",
    "RemovalReport",
    "SectionScorer",
    "Selection",
    "SheafModel",
    "inference_filter",
    "rank_completion",
]
