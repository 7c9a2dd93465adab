import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.data import Vocabulary, as_label_triples, count_duplicates
from sheafprop.data.label_checks import count_noun
from sheafprop.errors import DataError
from sheafprop.io.stored_model import StoredModel, with_entities
from sheafprop.kge import KGEModel, build_model

Array = Tensor | np.ndarray


def import_arrays(
    model: str,
    *,
    entities: Sequence[str],
    relations: Sequence[str],
    vectors: Array,
    parameters: Mapping[str, Array],
    facts: Iterable[Sequence[str]] | None = None,
    fact_ids: Tensor | None = None,
    p: float = 2.0,
    squared: bool = False,
    notes: Sequence[str] = (),
    keep_unused: bool = False,
) -> StoredModel:
    r"""Makes a model from plain arrays.

    Args:
        model (str): Its name in :obj:`sheafprop.kge.KGE_REGISTRY`.
        entities (sequence of str): Labels of the rows of ``vectors``.
        relations (sequence of str): Labels of the rows of the parameters.
        vectors (array): ``[N, d]``, complex for RotatE (or real ``[N, 2d]``, real and imaginary
            parts in turn).
        parameters (mapping): The relation parameters by the names they have in the model, such as
            ``"rel_emb.weight"`` (TransE: translations; RotatE: phases), ``"rel_map"`` (TransR,
            ``[R, k, d]``), ``"rel_map_head"`` and ``"rel_map_tail"`` (SE).
        facts (iterable, optional): The training triples as labels; prototypes and explanations
            need them. Repeated ones count once, with a warning that counts them.
        fact_ids (Tensor, optional): The same as ids ``[m, 3]``.
        p (float): The exponent of the norm in the score.
        squared (bool): Whether scores are squared norms.
        notes (sequence of str): What a user should know; kept with the model.
        keep_unused (bool): Whether entities that no fact names are kept too. Without it they are
            left out and counted in a warning, since they were never trained and would only come up
            in predictions. Without facts all are kept.

    Raises:
        ValueError: If shapes do not fit or a parameter is missing.
        DataError: If labels repeat or facts name others.
    """
    names = Vocabulary(entities, kind="entities")
    kinds = Vocabulary(relations, kind="relations")
    rows = torch.as_tensor(vectors)
    if rows.dim() != 2 or len(rows) != len(names):
        raise ValueError(
            f"'vectors' must be [{len(names)}, d], a row for each entity label (got "
            f"{list(rows.shape)})"
        )
    if rows.is_complex():
        rows = torch.view_as_real(rows.resolve_conj()).flatten(1)
    state = {name: torch.as_tensor(value) for name, value in parameters.items()}
    config: dict[str, Any] = {"p": p, "squared": squared, "entity_constraint": None}
    width = rows.shape[1] // 2 if model == "rotate" else rows.shape[1]
    if "rel_map" in state and model in ("transr",):
        config["relation_channels"] = state["rel_map"].shape[1]
    with torch.device("meta"):
        built = build_model(
            model,
            num_nodes=len(names),
            num_relations=len(kinds),
            hidden_channels=width,
            **config,
        )
    wanted = {name: list(value.shape) for name, value in built.state_dict().items()}
    state["node_emb.weight"] = rows
    got = {name: list(value.shape) for name, value in state.items()}
    if wanted != got:
        raise ValueError(f"a {model} of these labels has the parameters {wanted} (got {got})")
    for name, value in state.items():
        if not value.is_floating_point():
            raise ValueError(f"'{name}' must hold real numbers (got {value.dtype})")
    dtype = rows.dtype
    state = {name: value.detach().to(dtype).contiguous() for name, value in state.items()}
    built.load_state_dict(state, assign=True)
    if fact_ids is None:
        fact_ids = torch.zeros(0, 3, dtype=torch.int64)
        labels = as_label_triples([] if facts is None else facts, "the facts")
        if len(labels):
            ends = names.ids(labels[:, [0, 2]].ravel()).view(-1, 2)
            fact_ids = torch.stack([ends[:, 0], kinds.ids(labels[:, 1]), ends[:, 1]], dim=1)
    elif facts is not None:
        raise DataError("give 'facts' or 'fact_ids', not both")
    if repeated := count_duplicates(fact_ids):
        warnings.warn(
            f"{count_noun(repeated, 'fact')} {'repeats' if repeated == 1 else 'repeat'} an earlier "
            "one: a fact counts once",
            stacklevel=2,
        )
    if len(fact_ids) and not keep_unused:
        built, names, fact_ids = _without_unused(built, names, fact_ids)
    return StoredModel.from_training(
        built, names, kinds, fact_ids, metrics={"import": {"notes": list(notes)}}
    )


def _without_unused(
    model: KGEModel, entities: Vocabulary, facts: Tensor
) -> tuple[KGEModel, Vocabulary, Tensor]:
    used, ends = torch.unique(facts[:, [0, 2]], return_inverse=True)
    if len(used) == len(entities):
        return model, entities, facts
    warnings.warn(
        f"{len(entities) - len(used)} of the {len(entities)} entities occur in no fact, so they "
        "were never trained and are left out (keep_unused keeps them)",
        stacklevel=3,
    )
    names = Vocabulary(entities.labels_of(used), kind="entities")
    facts = torch.stack([ends[:, 0], facts[:, 1], ends[:, 1]], dim=1)
    return with_entities(model, used), names, facts
