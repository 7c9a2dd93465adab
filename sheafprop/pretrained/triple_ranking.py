from dataclasses import replace
from functools import partial
from typing import Literal

from torch import Tensor

from sheafprop.checks import agree, check_choice, count_noun, quote
from sheafprop.data.label_checks import advise_on_order
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import DataError
from sheafprop.pretrained.extension import extend
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.triple_input import TripleInput, label_triples, lookup_triples
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
    if again := sorted(set(range(len(given))) - set(ranked)):
        number = count_noun(len(again), "triple")
        notes.append(f"{number} given again: each is ranked once ({given.places(again)})")
    if added is not None:
        state = _extend(state, added, given, notes)
    kept = _exclude_unknown(state, given, ranked, on_unknown_entity, notes)
    ids = state.triple_ids(given.select(kept))
    state.check_finite()
    parts = {"facts": state.facts.from_row(0), "ranked": ids}
    if others is not None:
        parts["further"] = _known_triples(state, others, notes)
    scores = state.candidate_scores
    result = evaluate(
        lambda head, rel: scores(head, rel, "tail"),
        lambda rel, tail: scores(tail, rel, "head"),
        ids,
        TripleFilter(parts, state.num_entities, len(state.relations)),
        num_dropped=len(ranked) - len(kept),
        test_set="given",
        progress=progress,
        entity_labels=state.index.all_labels(),
    )
    return replace(result, notes=tuple(notes))


def _distinct(triples: LocatedRows) -> list[int]:
    """The rows that repeat no earlier one."""
    first: dict[tuple[str, ...], int] = {}
    for row, triple in enumerate(map(tuple, triples)):
        first.setdefault(triple, row)
    return list(first.values())


def _known_triples(state: ModelState, triples: LocatedRows, notes: list[str]) -> Tensor:
    """Ids of the triples of known labels; a note counts the others."""
    ids = lookup_triples(triples.rows, state.index, state.relations)
    unknown = (ids < 0).any(1)
    if lost := unknown.nonzero().flatten().tolist():
        hint = advise_on_order(triples.rows, state.index, state.relations)
        notes.append(
            f"{count_noun(len(lost), 'triple')} of the filter {agree(len(lost), 'has', 'have')} "
            f"a label that the model does not know and {agree(len(lost), 'excludes', 'exclude')} "
            f"nothing ({triples.places(lost)})" + (hint and f". {hint}")
        )
    return ids[~unknown]


def _extend(
    state: ModelState, facts: LocatedRows, ranked: LocatedRows, notes: list[str]
) -> ModelState:
    """The model with facts that are no triples to rank: what is asked for is never observed."""
    asked = set(map(tuple, ranked))
    own = [row for row, triple in enumerate(facts) if tuple(triple) not in asked]
    if excluded := sorted(set(range(len(facts))) - set(own)):
        notes.append(
            f"{count_noun(len(excluded), 'fact')} left out of the extension, as a triple to "
            f"rank is no fact ({facts.places(excluded)})"
        )
    if not own:
        raise DataError(f"no fact is left to extend by: {notes[-1]}")
    state, report = extend(state, facts.select(own))
    notes.append(
        f"{count_noun(report.new_entities, 'entity')} added from {count_noun(report.facts, 'fact')}"
        " before ranking"
    )
    return state


def _exclude_unknown(
    state: ModelState,
    triples: LocatedRows,
    rows: list[int],
    action: UnknownEntity,
    notes: list[str],
) -> list[int]:
    """The rows between entities of the model; others are refused, or counted in a note."""
    ends = triples.rows[rows][:, [0, 2]]
    missing = (state.index.lookup(ends.ravel()) < 0).view(-1, 2)
    if not missing.any():
        return rows
    unknown = list(dict.fromkeys(ends[missing].tolist()))
    lost = [row for row, out in zip(rows, missing.any(1).tolist(), strict=True) if out]
    advise = partial(advise_on_order, triples.rows, state.index, state.relations)
    if action == "error":
        try:
            state.index.ids(unknown)
        except DataError as error:
            advice = advise(
                "Drop these with on_unknown_entity='drop' (--on-unknown-entity drop), or give "
                "observed facts of such entities with 'extend'"
            )
            raise DataError(
                f"{error}; {len(lost)} of {count_noun(len(rows), 'triple')} affected "
                f"({triples.places(lost)}). {advice}"
            ) from error
    why = "no vector" if action == "drop" else "no fact"
    notes.append(
        f"{count_noun(len(lost), 'triple')} dropped, as {count_noun(len(unknown), 'entity')} "
        f"{agree(len(unknown), 'has', 'have')} {why} (first: {quote(unknown[0])}; "
        f"{triples.places(lost)})"
    )
    if len(lost) == len(rows):
        raise DataError(f"no triple is left to rank: {notes[-1]}. {advise()}".removesuffix(". "))
    return [row for row, out in zip(rows, missing.any(1).tolist(), strict=True) if not out]
