"""Knowledge graphs: reading triples, vocabularies, splits and data sets."""

from sheafprop.data.datasets import FolderDataset, GraILDataset, InductiveDataset, PykeenDataset
from sheafprop.data.inductive_data import InductiveData, assemble
from sheafprop.data.inspection import connected_components, count_duplicates, triple_codes
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.data.splits import SemiInductiveSplit, hold_out_mask, semi_inductive_split
from sheafprop.data.triples import as_label_triples, parse_triples, read_triples, write_triples
from sheafprop.data.vocabulary import Vocabulary

__all__ = [
    "FolderDataset",
    "GraILDataset",
    "InductiveData",
    "InductiveDataset",
    "KnowledgeGraph",
    "PykeenDataset",
    "SemiInductiveSplit",
    "Vocabulary",
    "as_label_triples",
    "assemble",
    "connected_components",
    "count_duplicates",
    "hold_out_mask",
    "parse_triples",
    "read_triples",
    "semi_inductive_split",
    "triple_codes",
    "write_triples",
]
