"""Public names of 0.1.0: they work in 0.2 with a warning, or the error says what to use."""

import importlib
import warnings
from typing import Any

# Names that only moved: the new home, and the names of 0.1.0 that it has.
_HOMES = {
    ("sheafprop.service", "sheafprop.inductive"): (
        "CompletionResult InductivePropagation PropagationSearch PropagationSettings "
        "SectionScorer Selection inference_filter rank_completion"
    ),
    ("sheafprop.service", "sheafprop.pretrained"): "ExtensionReport RemovalReport SheafModel",
    ("sheafprop.io", "sheafprop.files"): (
        "StorageError remove_temporaries write_bytes write_json write_text"
    ),
    ("sheafprop.io", "sheafprop.pretrained"): (
        "StoredModel check_model_target load_model_folder write_model_folder"
    ),
}
_MOVED = {
    f"{old}.{name}": f"{new}.{name}"
    for (old, new), names in _HOMES.items()
    for name in names.split()
} | {"sheafprop.query.QueryAnswer": "sheafprop.query.Answer"}

# Names whose work is done otherwise, and how.
_REPLACED = {
    "sheafprop.io.save_model_folder": (
        "write_model_folder(folder, StoredModel.from_training(...)) of sheafprop.pretrained"
    ),
    "sheafprop.io.exporters": "sheafprop.pretrained.vector_export.export_vectors",
    "sheafprop.io.importers": "sheafprop.pretrained.importers",
    "sheafprop.nn.unbatch": "torch_geometric.utils.unbatch(rows, batch.batch, dim=-2)",
    "sheafprop.nn.unbatch_hetero": "torch_geometric.utils.unbatch, one node type at a time",
    "sheafprop.query.QueryAnswering": "sheafprop.query.EnergyScorer, with other arguments",
    "sheafprop.query.QueryEdgeHeuristic": "sheafprop.query.EdgeTypeScorer(num_nodes=...)",
    "sheafprop.query.sample_queries": "scripts/benchmarks/query_sampling.py of a clone",
    "sheafprop.ranking.describe": "RankingResult.describe",
    "sheafprop.service.FreePropagation": "sheafprop.inductive.InductivePropagation.from_system",
}


def find_renamed(module: str, name: str) -> Any:
    """Returns what a public name of 0.1.0 stands for today, with a :class:`FutureWarning`.

    Args:
        module: The module that was asked, such as ``sheafprop.query``.
        name: The name that it does not have.

    Raises:
        AttributeError: If 0.1.0 did not have the name either, or nothing today has its arguments;
            then the message says what does its work.
    """
    old = f"{module}.{name}"
    if old in _MOVED:
        new = _MOVED[old]
        warnings.warn(
            f"'{old}' is '{new}' since version 0.2.0; the old name ends with 0.3.0",
            FutureWarning,
            stacklevel=3,
        )
        home, _, found = new.rpartition(".")
        return getattr(importlib.import_module(home), found)
    message = f"module {module!r} has no attribute {name!r}"
    if old in _REPLACED:
        message += f": since version 0.2.0, use {_REPLACED[old]}"
    raise AttributeError(message)
