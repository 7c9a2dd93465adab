"""Relations that a model was not trained with, fitted to their facts in closed form."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sheafprop.checks import agree, check_integer, count_noun, quote
from sheafprop.data import Vocabulary
from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.data.label_checks import advise_on_order, lookalikes
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import DataError
from sheafprop.kernels.backend import all_finite
from sheafprop.kge import KGEModel, build_model
from sheafprop.nn import RelationPrototypes
from sheafprop.nn.relation_weights import residual_variance
from sheafprop.pretrained.model_calibration import ModelCalibration
from sheafprop.pretrained.model_state import ModelState
from sheafprop.query import LinkCalibration

if TYPE_CHECKING:
    import pandas as pd

#: Facts between entities with vectors that a new relation needs.
MIN_FACTS = 5

_EXAMPLES = 5
_TABLE = "node_emb.weight"


def fit_relations(
    state: ModelState, triples: LocatedRows, min_facts: int | None = None
) -> tuple[ModelState, dict[str, dict[str, Any]]]:
    r"""The model with the unknown relations of some triples, fitted by
    :meth:`~sheafprop.kge.KGEModel.fit_relation`.

    A relation is fitted to its facts between entities of the model that have a way to a trained
    one, each fact once. Its facts are not added here. Neither order nor repetitions of triples
    change the result.

    Args:
        state (ModelState): The model.
        triples (LocatedRows): Label triples.
        min_facts (int, optional): How many such facts a relation needs. (default: 5)

    Returns:
        The larger model, and for each new relation, in the order of their labels: the number of
        ``facts`` it was fitted to, their mean squared ``residual``, the ``share`` of trained
        relations with a smaller one, and the known relation whose label it ``resembles``, if any.

    Raises:
        DataError: If a relation has too few facts, or the model cannot have new relations.
    """
    least = MIN_FACTS if min_facts is None else min_facts
    check_integer("min_facts", least, 1)
    labels = triples.rows
    unknown = state.relations.lookup(labels[:, 1]) < 0
    if not bool(unknown.any()):
        return state, {}
    places = unknown.nonzero().flatten().tolist()
    names = sorted(set(labels[places, 1].tolist()))
    if state.trained.episodes is not None:
        raise DataError(
            "this model scores by relations that were trained through the diffusion, which new "
            f"ones ({quote(names[0])}) are not: take the scores of its vectors alone with "
            "with_scores(episodes=False) (--without-episodes)"
        )
    facts = _known_facts(state, labels[places], names)
    numbers = torch.bincount(facts[:, 1], minlength=len(names)).tolist()
    counts = dict(zip(names, numbers, strict=True))
    if min(numbers) < least:
        raise DataError(_too_few(state, triples, places, counts, least))
    grown, residuals = _add(state, names, facts)
    known = len(state.relations)
    near = lookalikes(grown.relations.labels, known)
    usual = _trained_residuals(state)
    report = {
        name: {
            "facts": counts[name],
            "residual": residual,
            "share": float((usual < residual).double().mean()) if len(usual) else None,
            "resembles": near.get(name),
        }
        for name, residual in zip(names, residuals.tolist(), strict=True)
    }
    return grown, report


def _known_facts(state: ModelState, labels: Any, names: Sequence[str]) -> Tensor:
    """Distinct facts between anchored entities, relations as positions in ``names``, in order."""
    relation = Vocabulary(names).lookup(labels[:, 1])
    ends = state.index.lookup(labels[:, [0, 2]].ravel()).view(-1, 2)
    triples = torch.stack([ends[:, 0], relation, ends[:, 1]], dim=1)
    # In an order of their own: sums of floating point numbers depend on it.
    triples = torch.unique(triples[(ends >= 0).all(1)], dim=0)
    used, place = torch.unique(triples[:, [0, 2]], return_inverse=True)
    origins = state.index.origins_of(used)
    adrift = torch.tensor([origin == "unanchored" for origin in origins], dtype=torch.bool)
    return triples[~adrift[place].any(1)]


def _too_few(
    state: ModelState,
    triples: LocatedRows,
    places: Sequence[int],
    counts: dict[str, int],
    least: int,
) -> str:
    few = [name for name, count in counts.items() if count < least]
    own = [place for place in places if counts[triples.rows[place, 1]] < least]
    given = Counter(triples.rows[own, 1].tolist())
    named = ", ".join(
        f"{quote(name)} ({counts[name]} of {count_noun(given[name], 'fact')})"
        for name in few[:_EXAMPLES]
    )
    more = f" and {len(few) - _EXAMPLES} more" if len(few) > _EXAMPLES else ""
    advice = advise_on_order(
        triples.rows,
        state.index,
        state.relations,
        "Where facts of known relations give the others a vector, extend by these facts first; or "
        "leave the relation out, or lower min_facts (--min-facts)",
    )
    return (
        f"a new relation is fitted to {count_noun(least, 'fact')} at least between entities that "
        f"have vectors, and {count_noun(len(few), 'relation')} {agree(len(few), 'has', 'have')} "
        f"fewer: {named}{more} ({triples.places(own)}). {advice}"
    )


def _add(state: ModelState, names: Sequence[str], facts: Tensor) -> tuple[ModelState, Tensor]:
    """The state with relations fitted to facts, whose relations are positions in ``names``, and
    their mean squared residuals."""
    head, number = state.trained, len(names)
    ids, place = torch.unique(facts[:, [0, 2]], return_inverse=True)
    x = state.rows.select(ids)
    if not all_finite(x):
        check_finite_rows(x, state.index, "known vectors", ids=ids)
    # The sections of an entity count as its weights say, as so many facts.
    weights = state.section_weight if x.shape[1] > 1 else (1.0,)
    old, first = _parameters(state.kge), head.num_trained_relations
    trained = _of_relations(state.kge, {k: v[:first] for k, v in old.items()}, first)
    found = []
    for kind in range(number):
        own = place[facts[:, 1] == kind]
        ends = x[own].permute(1, 2, 0, 3).flatten(1, 2)  # [2, sections * facts, d]
        weight = torch.tensor(weights, dtype=torch.float64).repeat_interleave(len(own))
        found.append(trained.fit_relation(ends[0], ends[1], weight))
    if found[0].keys() != old.keys():
        raise DataError(
            f"{type(state.kge).__name__} has the relation parameters {sorted(old)}, and its closed "
            f"form gives {sorted(found[0])}"
        )
    new = {k: torch.stack([rows[k] for rows in found]).to(v) for k, v in old.items()}
    whole = {k: torch.cat([v, new[k]]) for k, v in old.items()}
    with torch.no_grad():
        sheaf = _of_relations(state.kge, new, number).sheaf()
    edge_index, edge_type = place.T.contiguous(), facts[:, 1].contiguous()
    sections = list(zip(weights, x.unbind(1), strict=True))
    variance, mean = torch.zeros(()), torch.zeros(())
    for w, vectors in sections:
        variance = variance + w * residual_variance(vectors, edge_index, edge_type, sheaf)
        part = RelationPrototypes.from_triples(vectors, edge_index, edge_type, number)
        mean = mean + w * part.mean
    grown = replace(
        head,
        model=_of_relations(state.kge, whole, len(head.relations) + number),
        relations=head.relations.extend(names),
        num_fitted_relations=head.num_fitted_relations + number,
        prototypes=RelationPrototypes(
            _by_side(head.prototypes.mean, mean), _by_side(head.prototypes.count, part.count)
        ),
        residual_variance=torch.cat([head.residual_variance, variance.to(head.residual_variance)]),
        calibration=_with_new(head.calibration, number),
    )
    return replace(state, trained=grown), grown.residual_variance[-number:]


def count_fitted_before(state: ModelState, facts: Tensor, fitted: Container[str]) -> dict[str, int]:
    """New facts between entities of the model of each relation that an earlier extension fitted.

    Args:
        state (ModelState): The model, with the relations that are fitted now.
        facts (Tensor): New facts in ids, ``[m, 3]``.
        fitted: The labels of relations that are fitted now.
    """
    inner = facts[(facts[:, [0, 2]] < state.num_entities).all(1), 1]
    kinds = inner[inner >= state.trained.num_trained_relations]
    count = torch.bincount(kinds, minlength=len(state.relations))
    labels = state.trained.relations.labels
    rows = count.nonzero().flatten().tolist()
    return {labels[i]: int(count[i]) for i in rows if labels[i] not in fitted}


def residual_range(state: ModelState) -> dict[str, float]:
    """The median of the mean squared residuals of trained relations, and what a tenth of them stays
    below and above; nothing for a model without facts."""
    residuals = _trained_residuals(state)
    if not len(residuals):
        return {}
    levels = {"low": 0.1, "median": 0.5, "high": 0.9}
    return {name: float(residuals.quantile(level)) for name, level in levels.items()}


def _trained_residuals(state: ModelState) -> Tensor:
    """Those of the trained relations that have facts, ``[n]``."""
    head, number = state.trained, state.trained.num_trained_relations
    seen = head.prototypes.count.view(2, -1)[0, :number] > 0
    return head.residual_variance[:number][seen].double()


def describe_relations(state: ModelState) -> "pd.DataFrame":
    """The relations; see :meth:`SheafModel.describe_relations`."""
    import pandas as pd

    head, number = state.trained, torch.zeros(len(state.relations), dtype=torch.int64)
    for part in state.facts.chunks():
        number += torch.bincount(part[:, 1], minlength=len(number))
    seen = head.prototypes.count.view(2, -1)[0] > 0
    return pd.DataFrame(
        {
            "relation": pd.Series(head.relations.labels, dtype=str),
            "origin": pd.Series(head.relation_origins(), dtype=str),
            "facts": number.tolist(),
            "residual": torch.where(seen, head.residual_variance.double(), torch.nan).tolist(),
        }
    )


def _parameters(model: KGEModel) -> dict[str, Tensor]:
    """All but the entity table: a row for each relation."""
    return {k: v.detach() for k, v in model.state_dict().items() if k != _TABLE}


def _of_relations(model: KGEModel, parameters: dict[str, Tensor], number: int) -> KGEModel:
    """The model with the same entities and other relations; nothing is copied."""
    with torch.device("meta"):
        other = build_model(model.name, **model.config() | {"num_relations": number})
    other.load_state_dict(parameters | {_TABLE: model.node_emb.weight.detach()}, assign=True)
    other.summarize_table = model.summarize_table
    return other


def _by_side(old: Tensor, new: Tensor) -> Tensor:
    """Rows of tail sides, then of head sides, with those of new relations after those of old."""
    parts = old.unflatten(0, (2, -1)), new.to(old).unflatten(0, (2, -1))
    return torch.cat(parts, dim=1).flatten(0, 1)


def _with_new(calibration: ModelCalibration | None, number: int) -> ModelCalibration | None:
    """The calibration with medians at each side for new relations, which have no held-out links."""
    if calibration is None:
        return None
    links = calibration.links
    parts = [
        _by_side(old, old.view(2, -1).median(1).values.repeat_interleave(number))
        for old in (links.temperature, links.num_answers)
    ]
    return replace(calibration, links=LinkCalibration(*parts))
