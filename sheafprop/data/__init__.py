"""Knowledge graphs: reading triples, vocabularies, splits and data sets."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sheafprop.data.assembly import assemble
    from sheafprop.data.datasets import (
        FolderDataset,
        GraILDataset,
        InductiveDataset,
        PykeenDataset,
        build_dataset,
    )
    from sheafprop.data.feature_files import read_features
    from sheafprop.data.features import FeatureTable
    from sheafprop.data.formats.prefixes import Prefixes
    from sheafprop.data.graph_counts import (
        connected_components,
        count_duplicates,
        first_occurrences,
        triple_codes,
    )
    from sheafprop.data.graph_split import GraphSplit, split_graph
    from sheafprop.data.inductive_data import InductiveData
    from sheafprop.data.knowledge_graph import KnowledgeGraph
    from sheafprop.data.splits import SemiInductiveSplit, hold_out_mask, semi_inductive_split
    from sheafprop.data.triples import as_label_triples, parse_triples, read_triples, write_triples
    from sheafprop.data.vocabulary import Vocabulary

# Imported at first use, so that files of triples can be read and checked before torch is there.
_HOMES = {
    name: home
    for home, names in {
        "assembly": "assemble",
        "datasets": "FolderDataset GraILDataset InductiveDataset PykeenDataset build_dataset",
        "formats.prefixes": "Prefixes",
        "feature_files": "read_features",
        "features": "FeatureTable",
        "graph_split": "GraphSplit split_graph",
        "inductive_data": "InductiveData",
        "graph_counts": "connected_components count_duplicates first_occurrences triple_codes",
        "knowledge_graph": "KnowledgeGraph",
        "splits": "SemiInductiveSplit hold_out_mask semi_inductive_split",
        "triples": "as_label_triples parse_triples read_triples write_triples",
        "vocabulary": "Vocabulary",
    }.items()
    for name in names.split()
}

__all__ = [
    "FeatureTable",
    "FolderDataset",
    "GraILDataset",
    "GraphSplit",
    "InductiveData",
    "InductiveDataset",
    "KnowledgeGraph",
    "Prefixes",
    "PykeenDataset",
    "SemiInductiveSplit",
    "Vocabulary",
    "as_label_triples",
    "assemble",
    "build_dataset",
    "connected_components",
    "count_duplicates",
    "first_occurrences",
    "hold_out_mask",
    "parse_triples",
    "read_features",
    "read_triples",
    "semi_inductive_split",
    "split_graph",
    "triple_codes",
    "write_triples",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"sheafprop.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
