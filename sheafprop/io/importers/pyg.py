import warnings
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from sheafprop.io.importers.arrays import import_arrays
from sheafprop.io.stored_model import StoredModel


def import_pyg(
    model: torch.nn.Module | Mapping[str, Tensor],
    *,
    entities: Sequence[str],
    relations: Sequence[str],
    facts: Iterable[Sequence[str]] | None = None,
    p: float | None = None,
    keep_unused: bool = False,
) -> StoredModel:
    r"""Imports a TransE or RotatE of :mod:`torch_geometric.nn.kge`.

    PyG scales the entities of TransE to length one when it scores, so they are scaled here; its
    RotatE has a table of real and one of imaginary parts, and adds its margin to every score.

    Args:
        model (Module or mapping): The model, or its state dict. RotatE is told by its imaginary
            table.
        entities (sequence of str): Labels of the entities, in the order of their ids.
        relations (sequence of str): Labels of the relations.
        facts (iterable, optional): The training triples as labels.
        p (float, optional): The norm of TransE. (default: the model's ``p_norm``, else 1)
        keep_unused (bool): See :func:`import_arrays`.

    Raises:
        ValueError: If it is none of these models.
    """
    state = model.state_dict() if isinstance(model, torch.nn.Module) else dict(model)
    state = {name: value.detach().cpu() for name, value in state.items()}
    names = {name for name in state if not name.startswith("_")}
    if names == {"node_emb.weight", "node_emb_im.weight", "rel_emb.weight"}:
        vectors = torch.complex(state["node_emb.weight"], state["node_emb_im.weight"])
        return import_arrays(
            "rotate",
            entities=entities,
            relations=relations,
            vectors=vectors,
            parameters={"rel_emb.weight": state["rel_emb.weight"]},
            facts=facts,
            keep_unused=keep_unused,
        )
    is_transe = names == {"node_emb.weight", "rel_emb.weight"} and (
        not isinstance(model, torch.nn.Module) or type(model).__name__ == "TransE"
    )
    if not is_transe:
        raise ValueError(
            "only TransE and RotatE of torch_geometric.nn.kge can be imported (got "
            f"{type(model).__name__} with {sorted(names)})"
        )
    norm = float(p if p is not None else getattr(model, "p_norm", 1.0))
    notes = []
    if norm != 2.0:
        notes.append(
            f"the model scores by the {norm:g}-norm, and propagation minimises squared 2-norms: "
            "vectors of new entities are a compromise"
        )
        warnings.warn(notes[0], stacklevel=2)
    vectors = torch.nn.functional.normalize(state["node_emb.weight"], p=norm, dim=-1)
    return import_arrays(
        "transe",
        entities=entities,
        relations=relations,
        vectors=vectors,
        parameters={"rel_emb.weight": state["rel_emb.weight"]},
        facts=facts,
        p=norm,
        notes=notes,
        keep_unused=keep_unused,
    )
