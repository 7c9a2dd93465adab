import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import count_noun
from sheafprop.data import Vocabulary, as_label_triples, count_duplicates
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import DataError
from sheafprop.kge import KGEModel, build_model
from sheafprop.pretrained.stored_model import StoredModel, select_entities
from sheafprop.pretrained.triple_input import triple_ids

Array = Tensor | np.ndarray
# Facts that are compared with random triples, and the share of wins from which on they fit.
_MIN_FACTS, _MAX_FACTS = 20, 2000
_CHANCE = 0.6


def import_arrays(
    model: str,
    *,
    entities: Sequence[str],
    relations: Sequence[str],
    vectors: Array,
    parameters: Mapping[str, Array],
    facts: LocatedRows | Iterable[Sequence[str]] | None = None,
    fact_ids: Tensor | None = None,
    layout: Literal["halves", "pairs"] | None = None,
    phase_scale: float | None = None,
    p: float = 2.0,
    squared: bool = False,
    notes: Sequence[str] = (),
    keep_unused: bool = False,
) -> StoredModel:
    r"""Makes a model from plain arrays.

    Args:
        model (str): Its name in ``sheafprop.kge.KGE_REGISTRY``.
        entities (sequence of str): Labels of the rows of ``vectors``.
        relations (sequence of str): Labels of the rows of the parameters.
        vectors (array): ``[N, d]``, complex for RotatE, or real ``[N, 2d]`` in some ``layout``.
        parameters (mapping): The relation parameters by the names they have in the model, such as
            ``"rel_emb.weight"`` (TransE: translations; RotatE: phases), ``"rel_map"`` (TransR,
            ``[R, k, d]``), ``"rel_map_head"`` and ``"rel_map_tail"`` (SE).
        facts (iterable, optional): The training triples as labels; prototypes and explanations
            need them. Repeated ones count once, with a warning that counts them.
        fact_ids (Tensor, optional): The same as ids ``[m, 3]``.
        layout (str, optional): How real ``vectors`` of RotatE are laid out: ``"pairs"`` of real and
            imaginary part in turn (PyKEEN and this library) or ``"halves"``, all real parts first
            (RotatE's authors, DGL-KE, OpenKE, LibKGE). (default: pairs, with a note)
        phase_scale (float, optional): What the phases of RotatE are multiplied by to be radians.
            RotatE's authors and DGL-KE store :math:`\phi\,\epsilon / \pi` with the range
            :math:`\epsilon` = (gamma + 2) / d of their embeddings, so :math:`\pi / \epsilon`
            here. (default: 1)
        p (float): The exponent of the norm in the score.
        squared (bool): Whether scores are squared norms.
        notes (sequence of str): What a user should know; warned of, and kept with the model.
        keep_unused (bool): Whether entities that no fact names are kept too. Without it they are
            left out and counted in a warning, since they were never trained and would only come up
            in predictions. Without facts all are kept.

    Warns where facts fit no better than random triples, as when the vectors are in
    another order than the labels, or in another layout.

    Raises:
        ValueError: If shapes do not fit, a parameter is missing, or ``layout`` or ``phase_scale``
            are given for a model without phases.
        DataError: If labels repeat or facts name others.
    """
    names = Vocabulary(entities, kind="entities")
    kinds = Vocabulary(relations, kind="relations")
    rows = _as_tensor(vectors)
    if rows.dim() != 2 or len(rows) != len(names):
        raise ValueError(
            f"'vectors' must be [{len(names)}, d], a row for each entity label (got "
            f"{list(rows.shape)})"
        )
    given = rows
    state = {name: _as_tensor(value) for name, value in parameters.items()}
    notes = list(notes)
    for note in notes:
        warnings.warn(note, stacklevel=3)
    if model == "rotate":
        if layout is None and not rows.is_complex():
            notes.append(
                "real and imaginary parts are taken in turn ('pairs'); where all real parts come "
                "first, as from RotatE's authors, DGL-KE, OpenKE or LibKGE, give layout='halves' "
                "(--layout halves)"
            )
            warnings.warn(notes[-1], stacklevel=2)
        rows = _pairs(rows, layout)
        if phase_scale is not None and "rel_emb.weight" in state:
            state["rel_emb.weight"] = state["rel_emb.weight"] * phase_scale
    elif rows.is_complex() or layout is not None or phase_scale is not None:
        raise ValueError(
            f"complex vectors, 'layout' and 'phase_scale' are for rotate (got model {model!r})"
        )
    config: dict[str, Any] = {"p": p, "squared": squared, "entity_constraint": None}
    width = rows.shape[1] // 2 if model == "rotate" else rows.shape[1]
    if "rel_map" in state and model in ("transr",):
        config["relation_channels"] = state["rel_map"].shape[1]
    with torch.device("meta"):
        built = build_model(
            model, num_nodes=len(names), num_relations=len(kinds), hidden_channels=width, **config
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
        given_facts = () if facts is None else facts
        if not isinstance(given_facts, LocatedRows):
            given_facts = LocatedRows.number(as_label_triples(given_facts, "the facts"))
        if len(given_facts):
            fact_ids = triple_ids(given_facts, names, kinds)
    elif facts is not None:
        raise DataError("give 'facts' or 'fact_ids', not both")
    if repeated := count_duplicates(fact_ids):
        warnings.warn(
            f"{count_noun(repeated, 'fact')} {'repeats' if repeated == 1 else 'repeat'} an earlier "
            "one: a fact counts once",
            stacklevel=2,
        )
    if len(fact_ids) and not keep_unused:
        built, names, fact_ids = _exclude_unused(built, names, fact_ids)
    notes += _fit_notes(built, fact_ids, layout is None and not given.is_complex())
    return StoredModel.from_training(
        built, names, kinds, fact_ids, metrics={"import": {"notes": notes}}
    )


def _as_tensor(values: Array) -> Tensor:
    """An array as a tensor, also of another byte order or one that runs backwards."""
    if isinstance(values, np.ndarray):
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    return torch.as_tensor(values)


def norm_notes(p: float) -> list[str]:
    """What a user should know of a model that scores by another norm than propagation takes."""
    if p == 2.0:
        return []
    return [
        f"the model scores by the {p:g}-norm, but propagation minimizes squared 2-norms: vectors "
        "of new entities are approximations"
    ]


@torch.no_grad()
def fact_share(model: KGEModel, facts: Tensor) -> float | None:
    """How often facts score above the same facts with another head or tail, ties halved.

    At most 2000 facts, every second with another head, are drawn with a fixed seed. None where
    there are too few to tell.
    """
    generator = torch.Generator().manual_seed(0)
    rows = facts[torch.randperm(len(facts), generator=generator)[:_MAX_FACTS]]
    if len(rows) < _MIN_FACTS:
        return None
    side = torch.where(torch.arange(len(rows)) % 2 == 0, 0, 2).unsqueeze(1)
    other = rows.clone()
    ends = torch.randint(model.num_nodes, (len(rows), 1), generator=generator)
    other.scatter_(1, side, ends)
    changed = (other != rows).any(1)
    x = model.entity_vectors()
    fact, random = (model.score_triples(x, *t[changed].unbind(1)) for t in (rows, other))
    if len(fact) < _MIN_FACTS // 2:
        return None
    return float(((fact > random).double() + 0.5 * (fact == random).double()).mean())


def _fit_notes(model: KGEModel, facts: Tensor, is_layout_open: bool) -> list[str]:
    """Warns where facts fit as random triples do, or better in the other layout."""
    share = fact_share(model, facts)
    if share is None:
        return []
    notes = []
    if share < _CHANCE:
        notes.append(
            f"facts score above random triples in only {100 * share:.0f} % of comparisons (chance: "
            "50 %): check model, norm, layout, phases, and the order of the labels"
        )
    if is_layout_open and model.__class__.__name__ == "RotatE":
        turned = copy.deepcopy(model)
        turned.node_emb.weight.data = _pairs(model.node_emb.weight.detach(), "halves")
        other = fact_share(turned, facts)
        if other is not None and other > max(share, _CHANCE):
            notes.append(
                f"as halves {100 * other:.0f} %, as pairs {100 * share:.0f} %: the vectors seem to "
                "be halves (--layout halves)"
            )
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return notes


def _pairs(rows: Tensor, layout: str | None) -> Tensor:
    """Rows ``[N, 2d]`` with the real and imaginary parts in turn."""
    if layout not in (None, "pairs", "halves"):
        raise ValueError(f"'layout' must be 'halves' or 'pairs' (got {layout!r})")
    if rows.is_complex():
        if layout is not None:
            raise ValueError("'layout' is for real vectors (these are complex)")
        return torch.view_as_real(rows.resolve_conj()).flatten(1)
    if layout != "halves":
        return rows
    if rows.shape[1] % 2:
        raise ValueError(f"halves need an even number of columns (got {rows.shape[1]})")
    return rows.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)


def _exclude_unused(
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
    return select_entities(model, used), names, facts
