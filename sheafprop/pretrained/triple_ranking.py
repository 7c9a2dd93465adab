from dataclasses import replace
from typing import Literal

import numpy as np

from sheafprop.checks import check_choice, count_noun, quote
from sheafprop.data.triples import LabelTriples
from sheafprop.errors import DataError
from sheafprop.pretrained.extension import extend
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.triple_input import TripleInput, label_triples, triple_ids
from sheafprop.ranking import RankingResult, TripleFilter, evaluate

UnknownEntity = Literal["error", "drop", "extend"]


def rank_triples(
    state: ModelState,
    triples: TripleInput,
    known: TripleInput | None,
    on_unknown_entity: UnknownEntity,
    facts: TripleInput | None,
    progress: bool,
) -> RankingResult:
    """Ranks true triples among all entities of a model; see :meth:`SheafModel.rank`."""
    given = label_triples(triples, state.relations)
    others = None if known is None else label_triples(known, state.relations)
    added = None if facts is None else label_triples(facts, state.relations)
    check_choice("on_unknown_entity", on_unknown_entity, ("error", "drop", "extend"))
    if (added is not None) != (on_unknown_entity == "extend"):
        raise ValueError(
            "'facts' belong to on_unknown_entity='extend', which needs the observed facts of "
            f"the unknown entities (got {on_unknown_entity!r} "
            f"{'with' if added is not None else 'without'} facts)"
        )
    ranked, notes = _distinct(given), []
    if len(ranked) < len(given):
        number = count_noun(len(given) - len(ranked), "triple")
        notes.append(f"{number} given again: each is ranked once")
    if added is not None:
        state = _extend(state, added, ranked, notes)
    kept = _exclude_unknown(state, ranked, on_unknown_entity, notes)
    ids = state.triple_ids(kept)
    state.check_finite()
    parts = {"facts": state.facts.from_row(0), "ranked": ids}
    if others is not None:
        more = triple_ids(others, state.index.lookup, state.relations.lookup)
        parts["further"] = more[(more >= 0).all(1)]
    scores = state.scorer.scores
    result = evaluate(
        lambda head, rel: scores(state.rows.select(head), rel, "tail"),
        lambda rel, tail: scores(state.rows.select(tail), rel, "head"),
        ids,
        TripleFilter(parts, state.num_entities, len(state.relations)),
        num_dropped=len(ranked) - len(kept),
        test_set="given",
        progress=progress,
        entity_labels=state.index.vocabulary().labels,
    )
    return replace(result, notes=tuple(notes))


def _distinct(triples: LabelTriples) -> LabelTriples:
    rows = list(dict.fromkeys(map(tuple, triples)))
    return np.array(rows, dtype=object).reshape(-1, 3)


def _extend(
    state: ModelState, facts: LabelTriples, ranked: LabelTriples, notes: list[str]
) -> ModelState:
    """The model with facts that are no triples to rank: what is asked for is never observed."""
    asked = set(map(tuple, ranked))
    own = np.array([tuple(row) not in asked for row in facts])
    if not own.all():
        notes.append(
            f"{count_noun(int((~own).sum()), 'fact')} left out of the extension, as a triple to "
            "rank is no fact"
        )
    if not own.any():
        raise DataError(f"no fact is left to extend by: {notes[-1]}")
    state, report = extend(state, facts[own])
    notes.append(
        f"{count_noun(report.new_entities, 'entity')} added from {count_noun(report.facts, 'fact')}"
        " before ranking"
    )
    return state


def _exclude_unknown(
    state: ModelState, triples: LabelTriples, action: UnknownEntity, notes: list[str]
) -> LabelTriples:
    """The triples between entities of the model; others are refused, or counted in a note."""
    ends = triples[:, [0, 2]]
    missing = (state.index.lookup(ends.ravel()) < 0).view(-1, 2).numpy()
    if not missing.any():
        return triples
    unknown = list(dict.fromkeys(ends[missing].tolist()))
    affected = int(missing.any(1).sum())
    if action == "error":
        try:
            state.index.ids(unknown)
        except DataError as error:
            raise DataError(
                f"{error}; {affected} of {count_noun(len(triples), 'triple')} affected. Drop these "
                "with on_unknown_entity='drop' (--on-unknown-entity drop), or give observed facts "
                "of such entities with 'extend'"
            ) from error
    why = "no vector" if action == "drop" else "no fact"
    notes.append(
        f"{count_noun(affected, 'triple')} dropped, as {count_noun(len(unknown), 'entity')} "
        f"{'has' if len(unknown) == 1 else 'have'} {why} (first: {quote(unknown[0])})"
    )
    if affected == len(triples):
        raise DataError(f"no triple is left to rank: {notes[-1]}")
    return triples[~missing.any(1)]
