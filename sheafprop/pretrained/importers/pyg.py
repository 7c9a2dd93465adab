from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sheafprop.pretrained.importers.arrays import import_arrays, norm_notes
from sheafprop.pretrained.importers.inert_unpickler import Inert, state_of, strip_prefixes, unwrap
from sheafprop.pretrained.stored_model import StoredModel

#: The classes that can be imported, and the parameters of each.
_PARAMETERS = {
    "TransE": {"node_emb.weight", "rel_emb.weight"},
    "RotatE": {"node_emb.weight", "node_emb_im.weight", "rel_emb.weight"},
}


def import_pyg(
    model: torch.nn.Module | Inert | Mapping[str, Tensor],
    *,
    entities: Sequence[str],
    relations: Sequence[str],
    facts: Iterable[Sequence[str]] | None = None,
    kge: str | None = None,
    p: float | None = None,
    keep_unused: bool = False,
) -> StoredModel:
    r"""Imports a TransE or RotatE of :mod:`torch_geometric.nn.kge`.

    PyG scales the entities of TransE to length one when it scores, so they are scaled here; its
    RotatE has a table of real and one of imaginary parts, and adds its margin to every score.

    Args:
        model (Module or mapping): The model, which says what it is, or its state dict, which does
            not: DistMult has the parameters of TransE. Prefixes that ``torch.compile`` and data
            parallel training put before the names are left out.
        entities (sequence of str): Labels of the entities, in the order of their ids.
        relations (sequence of str): Labels of the relations.
        facts (iterable, optional): The training triples as labels.
        kge (str, optional): ``"transe"`` or ``"rotate"``; needed with a state dict.
        p (float, optional): The norm of TransE. (default: the model's ``p_norm``; of a state dict,
            PyG's default 1, with a note)
        keep_unused (bool): See :func:`import_arrays`.

    Raises:
        ValueError: If it is another model, or a state dict without ``kge``.
    """
    name, settings, state = _parts(model)
    if name is None and kge is None:
        raise ValueError(
            "a state dict does not say what model it is of (DistMult has the parameters of TransE):"
            " give kge='transe' or kge='rotate' (--model), or save the model itself"
        )
    wanted = {"transe": "TransE", "rotate": "RotatE", None: name}.get(kge)
    found = {key for key in state if not key.startswith("_")}
    if wanted not in _PARAMETERS or name not in (None, wanted):
        is_asked = f", not a {kge}" if name is not None and kge is not None else ""
        raise ValueError(
            "only TransE and RotatE of torch_geometric.nn.kge can be imported: the others have no "
            f"sheaf (got {name or kge}{is_asked})"
        )
    if found != _PARAMETERS[wanted]:
        raise ValueError(
            f"a {wanted} of torch_geometric.nn.kge has the parameters "
            f"{sorted(_PARAMETERS[wanted])} (got {sorted(found)})"
        )
    common: dict[str, Any] = {
        "entities": entities,
        "relations": relations,
        "parameters": {"rel_emb.weight": state["rel_emb.weight"]},
        "facts": facts,
        "keep_unused": keep_unused,
    }
    if wanted == "RotatE":
        vectors = torch.complex(state["node_emb.weight"], state["node_emb_im.weight"])
        return import_arrays("rotate", vectors=vectors, **common)
    notes = []
    if p is None and "p_norm" not in settings:
        notes.append("the state dict does not hold the norm of the score: PyG's default 1 is taken")
    norm = float(p if p is not None else settings.get("p_norm", 1.0))
    notes += norm_notes(norm)
    vectors = torch.nn.functional.normalize(state["node_emb.weight"], p=norm, dim=-1)
    return import_arrays("transe", vectors=vectors, p=norm, notes=notes, **common)


def _parts(model: Any) -> tuple[str | None, Mapping[str, Any], dict[str, Tensor]]:
    """The class of a model (None of a state dict), its settings and its parameters."""
    name: str | None = None
    settings: Mapping[str, Any] = {}
    if isinstance(model, Inert):
        inner = unwrap(model)
        name, settings, state = type(inner).__name__, inner.state, state_of(inner)
    elif isinstance(model, torch.nn.Module):
        inner_module: Any = model
        while type(inner_module).__name__ in ("OptimizedModule", "DistributedDataParallel"):
            inner_module = getattr(inner_module, "_orig_mod", None) or inner_module.module
        name, settings = type(inner_module).__name__, vars(inner_module)
        state = inner_module.state_dict()
    else:
        state = dict(model)
    state = {key: value.detach().cpu() for key, value in strip_prefixes(state).items()}
    return name, settings, state
