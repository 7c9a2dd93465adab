import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from sheafprop.checks import agree, check_choice, check_integer, count_noun, quote
from sheafprop.data import connected_components, first_occurrences
from sheafprop.data.features import FeatureTable
from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.data.label_checks import advise_on_order, describe_exchanged
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import DataError, UnknownRelationError
from sheafprop.inductive.extension_solver import FreeSolution
from sheafprop.inductive.free_system import FreeSystem, components
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kernels.backend import all_finite
from sheafprop.kernels.threads import small_operations
from sheafprop.pretrained.change_reports import ExtensionReport, RemovalReport
from sheafprop.pretrained.feature_input import take_features
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.new_relations import count_fitted_before, fit_relations, residual_range

Propagation = Literal["exact", "selected"] | PropagationSettings
Mode = Literal["keep", "refine"]
UnknownRelation = Literal["error", "drop", "fit"]

_EXAMPLES = 5
_NO_FACTS = torch.zeros(0, 3, dtype=torch.int64)


def extend(
    state: ModelState,
    triples: LocatedRows,
    *,
    propagation: Propagation = "exact",
    mode: Mode = "keep",
    on_unknown_relation: UnknownRelation = "error",
    min_facts: int | None = None,
    seed: int | None = None,
    batch_size: int | None = None,
    normalize_output: bool | None = None,
    features: FeatureTable | None = None,
) -> tuple[ModelState, ExtensionReport]:
    """The larger model, and what was done; see :meth:`SheafModel.extend`."""
    begin = time.perf_counter()
    if batch_size is not None:
        check_integer("batch_size", batch_size, 1)
    check_choice("mode", mode, ("keep", "refine"))
    check_choice("on_unknown_relation", on_unknown_relation, ("error", "drop", "fit"))
    fitted: dict[str, dict[str, Any]] = {}
    if on_unknown_relation == "fit":
        state, fitted = fit_relations(state, triples, min_facts)
    elif min_facts is not None:
        raise ValueError("'min_facts' is for on_unknown_relation='fit' (--on-unknown-relation fit)")
    with small_operations(len(triples) * state.num_sections * state.kge.hidden_channels):
        choice = _choose(state, propagation, seed, normalize_output)
        facts = _parse(state, triples, on_unknown_relation)
        given = take_features(state, features, facts.labels, mode)
        state = given.state
        facts = facts._replace(labels=[*facts.labels, *given.alone])
        touched, again, used = _select(state, facts, mode, given.known)
        free = torch.cat([again, state.num_entities + torch.arange(len(facts.labels))])
        free_labels = [*state.index.labels_of(again), *facts.labels]
        system, nodes = _build(state, used, free, free_labels)
        solution = _solve(state, system, choice, batch_size)
        origins = _origins(state, system, nodes)
        grown = _grow(state, facts, again, solution.vectors, origins)
        if choice.name != "exact" and len(free):
            grown = replace(grown, section_weight=choice.settings.section_weight)
        is_kept = len(touched) and not len(again)
        pull = _pull(grown, touched, choice.normalize) if is_kept else 0.0
    report = ExtensionReport(
        facts=len(facts.new),
        new_entities=len(facts.labels),
        known_entities=facts.num_known,
        facts_between_known=int((~torch.isin(facts.new[:, [0, 2]], free).any(1)).sum()),
        solved_exactly=int(solution.exact.sum()),
        solved_finite_time=int((~solution.exact).sum()),
        reasons=solution.reasons,
        propagation=choice.name,
        settings=choice.settings.to_dict() if not bool(solution.exact.all()) else None,
        relative_residual=solution.relative_residual,
        rescaled=len(solution.lengths),
        length_before=float(solution.lengths.mean()) if len(solution.lengths) else None,
        unanchored=[
            label
            for label, origin in zip(free_labels, origins, strict=True)
            if origin == "unanchored"
        ],
        dropped_facts=facts.dropped,
        dropped_at=facts.dropped_at,
        duplicates=facts.num_given - len(facts.distinct),
        known_facts=len(facts.distinct) - len(facts.new),
        kept_facts=state.count_left_out(facts.distinct, facts.new),
        touched=state.index.labels_of(touched),
        pull=pull,
        refined=state.index.labels_of(again),
        with_features=given.number,
        from_features_alone=len(given.alone),
        feature_notes=given.notes,
        seconds=time.perf_counter() - begin,
        fitted_relations=fitted,
        trained_residuals=residual_range(state) if fitted else {},
        dimensions=state.kge.hidden_channels,
        fitted_before=count_fitted_before(state, facts.new, fitted)
        if on_unknown_relation == "fit"
        else {},
        find_lookalikes=partial(grown.index.lookalikes, state.num_entities),
    )
    return grown, report


def remove_entities(
    state: ModelState,
    entities: str | Iterable[str],
    mode: Mode = "keep",
    normalize_output: bool | None = None,
) -> tuple[ModelState, RemovalReport]:
    """The smaller model, and what was done; see :meth:`SheafModel.remove`."""
    begin = time.perf_counter()
    check_choice("mode", mode, ("keep", "refine"))
    gone = torch.unique(state.index.ids(entities))
    if int((gone < state.num_trained).sum()) == state.num_trained:
        raise DataError("no trained entity would be left, so the model would know nothing")
    lost = state.facts.at(gone)
    affected = torch.unique(lost[:, [0, 2]])
    affected = affected[(affected >= state.num_trained) & ~torch.isin(affected, gone)]
    labels = state.index.labels_of(affected)
    again: list[str] = []
    smaller = state.without(gone)
    left = torch.isin(smaller.index.ids(labels), smaller.added_facts()[:, [0, 2]])
    if mode == "refine" and labels:
        smaller, again = _resolve(smaller, labels, normalize_output)
    report = RemovalReport(
        entities=len(gone),
        facts=len(lost),
        affected=labels,
        without_facts=[
            name for name, found in zip(labels, left.tolist(), strict=True) if not found
        ],
        refined=again,
        seconds=time.perf_counter() - begin,
    )
    return smaller, report


def _resolve(
    state: ModelState, labels: Sequence[str], normalize_output: bool | None = None
) -> tuple[ModelState, list[str]]:
    """Solves some added entities, and those that facts connect to them, again; names them all."""
    again, used = _neighbourhood(state, _NO_FACTS, state.index.ids(labels))
    names = state.index.labels_of(again)
    system, nodes = _build(state, used, again, names)
    choice = _choose(state, "exact", None, normalize_output)
    with small_operations(system.x.numel()):
        solution = _solve(state, system, choice)
    return state.rewrite(again, solution.vectors, _origins(state, system, nodes)), names


# Parse -------------------------------------------------------------------------------------------


class _Choice(NamedTuple):
    """How to solve: by what settings, their name, and whether new vectors are scaled."""

    settings: PropagationSettings
    name: str
    normalize: bool


def _choose(
    state: ModelState, propagation: Propagation, seed: int | None, normalize_output: bool | None
) -> _Choice:
    chosen = state.trained.settings
    if isinstance(propagation, PropagationSettings):
        settings, name = propagation, "given"
    else:
        check_choice("propagation", propagation, ("exact", "selected"))
        if propagation == "selected" and not chosen:
            raise ValueError(
                "this model has no propagation that was chosen on validation: give "
                "propagation=PropagationSettings(...), or 'exact'"
            )
        settings, name = PropagationSettings.from_stored(chosen), propagation
    if seed is not None:
        settings = replace(settings, seed=seed)
    if normalize_output is not None:
        settings = replace(settings, normalize_output=normalize_output)
    if name == "exact":
        unit_rows = normalize_output is None and state.trained.has_unit_rows
        return _Choice(settings, name, unit_rows or bool(normalize_output))
    if state.num_sections > 1 and settings.section_weight != state.section_weight:
        raise ValueError(
            f"this model has {state.num_sections} sections already, and these settings ask "
            f"for {settings.num_sections} or other weights: extend the trained model"
        )
    return _Choice(settings, name, settings.normalize_output)


class _Facts(NamedTuple):
    """Given facts in ids, with new entities after those of the model, whose ``labels`` these are:
    ``distinct`` facts of known relations, and those of them that are ``new`` to the model."""

    distinct: Tensor
    new: Tensor
    labels: list[str]
    num_given: int
    num_known: int
    dropped: dict[str, int]
    dropped_at: str


def _parse(state: ModelState, triples: LocatedRows, on_unknown_relation: str) -> _Facts:
    labels = triples.rows
    relation = state.relations.lookup(labels[:, 1])
    lost = (relation < 0).nonzero().flatten().tolist()
    dropped = Counter(labels[lost, 1].tolist())
    if lost and on_unknown_relation == "error":
        raise UnknownRelationError(_unknown_relations(state, triples, lost, dropped))
    if lost and len(lost) == len(labels):
        advice = advise_on_order(labels, state.index, state.relations)
        raise DataError(f"no fact is left: the model knows none of the relations. {advice}")
    if lost:
        labels = labels[(relation >= 0).numpy()]
        relation = relation[relation >= 0]
    ends = labels[:, [0, 2]].ravel()
    ids = state.index.lookup(ends)
    missing = ids < 0
    unknown = ends[missing.numpy()].tolist()
    number = {label: i for i, label in enumerate(dict.fromkeys(unknown), state.num_entities)}
    ids[missing] = torch.tensor([number[label] for label in unknown], dtype=torch.int64)
    num_known = len(torch.unique(ids[~missing]))
    given = torch.stack([ids[0::2], relation, ids[1::2]], dim=1)
    distinct = given[first_occurrences(given)]
    # Only facts between entities of the model can be there already.
    found = (distinct[:, [0, 2]] < state.num_entities).all(1)
    if bool(found.any()):
        found[found.clone()] = state.facts.contain(distinct[found])
    return _Facts(
        distinct,
        distinct[~found],
        list(number),
        len(given),
        num_known,
        dict(dropped.most_common()),
        triples.places(lost),
    )


def _unknown_relations(
    state: ModelState, triples: LocatedRows, lost: list[int], unknown: Counter[str]
) -> str:
    """Which relations the model does not know, in which facts, and what to do."""
    named = ", ".join(
        f"{quote(label)} ({count_noun(count, 'fact')})" + state.relations.suggestion(label)
        for label, count in unknown.most_common(_EXAMPLES)
    )
    more = f" and {len(unknown) - _EXAMPLES} more" if len(unknown) > _EXAMPLES else ""
    advice = advise_on_order(
        triples.rows,
        state.index,
        state.relations,
        "Leave these facts out with on_unknown_relation='drop' (--on-unknown-relation drop), or "
        "let the relations be fitted to them with 'fit'",
    )
    return (
        f"{count_noun(len(unknown), 'relation')} {agree(len(unknown), 'is', 'are')} unknown to the "
        f"model, so it has no maps: {named}{more}; {len(lost)} of "
        f"{count_noun(len(triples), 'fact')} affected ({triples.places(lost)}). "
        + describe_exchanged(triples, lost, state.relations)
        + advice
    )


# Build -------------------------------------------------------------------------------------------


def _select(
    state: ModelState, facts: _Facts, mode: Mode, featured: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Touched added entities, those that are solved again, and the facts to solve with."""
    # What was kept so far is solved again where asked, also if its facts are known already.
    ends = (facts.new if mode == "keep" else facts.distinct)[:, [0, 2]]
    touched = torch.unique(torch.cat([ends.flatten(), featured]))
    touched = touched[(touched >= state.num_trained) & (touched < state.num_entities)]
    if mode == "keep" or not len(touched):
        return touched, touched[:0], facts.new
    return touched, *_neighbourhood(state, facts.new, touched)


def _neighbourhood(state: ModelState, facts: Tensor, touched: Tensor) -> tuple[Tensor, Tensor]:
    """Added entities that facts connect to touched ones, and all facts at free entities."""
    num_trained, num_entities = state.num_trained, state.num_entities
    facts = torch.cat([state.added_facts(), facts])
    ends = facts[:, [0, 2]]
    inner = (ends >= num_trained).all(1)
    largest = int(ends.max()) if len(ends) else 0
    size = max(num_entities, largest + 1) - num_trained
    component = connected_components((ends[inner] - num_trained).T, size)
    reached = torch.isin(component, component[touched - num_trained])
    again = reached.nonzero().flatten() + num_trained
    again = again[again < num_entities]
    return again, facts[(torch.isin(ends, again) | (ends >= num_entities)).any(1)]


def _build(
    state: ModelState, facts: Tensor, free: Tensor, labels: Sequence[str]
) -> tuple[FreeSystem, Tensor]:
    """The facts at free entities in local numbers, and the ids of these; anchors have none."""
    facts = facts[torch.isin(facts[:, [0, 2]], free).any(1)]
    nodes = torch.unique(torch.cat([facts[:, [0, 2]].flatten(), free]))
    is_free = torch.isin(nodes, free)
    known = state.rows.select(nodes[~is_free])
    if not all_finite(known):
        check_finite_rows(known, state.index, "known vectors", ids=nodes[~is_free])
    x = known.new_zeros(len(nodes), known.shape[1], state.kge.hidden_channels)
    x[~is_free] = known
    system = FreeSystem(
        x=x,
        boundary_mask=~is_free,
        edge_index=torch.searchsorted(nodes, facts[:, [0, 2]].T.contiguous()),
        edge_type=facts[:, 1].contiguous(),
        labels=labels,
    )
    if state.trained.features is not None:
        anchors = state.trained.features.anchors(labels)
        system = system.anchored(anchors, len(state.relations))
    return system, nodes


# Solve and grow ----------------------------------------------------------------------------------


def _solve(
    state: ModelState, system: FreeSystem, choice: _Choice, batch_size: int | None = None
) -> FreeSolution:
    solver, num_free = state.trained.solver, len(system.labels)

    def solve(part: FreeSystem) -> FreeSolution:
        if choice.name == "exact":
            return solver.exact(part, choice.settings, normalize_output=choice.normalize)
        return solver.finite_time(part, choice.settings)

    if not num_free:
        return FreeSolution(system.x[:0], torch.zeros(0, dtype=torch.bool), {}, 0.0)
    if batch_size is None:
        return solve(system)
    parts = ((position, solve(part)) for position, part in system.batches(batch_size))
    return FreeSolution.join(num_free, parts)


def _origins(state: ModelState, system: FreeSystem, nodes: Tensor) -> list[str]:
    """Where free vectors come from; added entities without an anchor are not anchors themselves."""
    anchors = system.boundary_mask
    nodes = torch.nn.functional.pad(nodes, (0, len(anchors) - len(nodes)), value=-1)
    anchors = anchors & ~state.are_unanchored(nodes.masked_fill(~anchors, -1))
    _, anchored = components(system, anchors)
    reached = anchored[~system.boundary_mask].tolist()
    return ["extended" if found else "unanchored" for found in reached]


def _grow(
    state: ModelState, facts: _Facts, again: Tensor, vectors: Tensor, origins: Sequence[str]
) -> ModelState:
    """The state with the new facts, and vectors of what was solved again and of what is new."""
    old = len(again)
    if old:
        state = state.rewrite(again, vectors[:old], origins[:old])
    return replace(
        state,
        index=state.index.add(facts.labels, origins[old:]),
        rows=state.rows.append(vectors[old:]),
        facts=state.facts.append(facts.new),
    )


def _pull(state: ModelState, touched: Tensor, normalize: bool) -> float:
    """How far touched entities of a model that has grown are from agreeing with all their facts,
    also those with new entities; see the report."""
    system, nodes = _build(state, state.added_facts(), touched, state.index.labels_of(touched))
    if not len(system.edge_type):
        return 0.0
    x = state.rows.select(nodes)
    targets = system.x[len(nodes) :].expand(-1, x.shape[1], -1)
    system = replace(system, x=torch.cat([x, targets]))
    return state.trained.solver.pull(system, normalize_output=normalize)
