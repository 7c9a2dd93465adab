from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import Tensor

from sheafprop.checks import agree, check_choice, count_noun, quote
from sheafprop.data.features import FeatureTable
from sheafprop.data.label_checks import advise_on_order
from sheafprop.data.text_rows import LocatedRows
from sheafprop.distributed import Ranks, rank_shards, rank_shares, shard_bounds
from sheafprop.errors import DataError
from sheafprop.inductive.section_scorer import CandidateScorer
from sheafprop.pretrained.extension import extend
from sheafprop.pretrained.graph_scorer import CandidateScores
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
    ranks: Ranks | None = None,
    features: FeatureTable | None = None,
) -> RankingResult:
    """Ranks true triples among all entities of a model; see :meth:`SheafModel.rank`."""
    arguments = state, triples, known, on_unknown_entity, facts, features
    rank: Callable[..., RankingResult] = evaluate
    if ranks is None or ranks.size == 1:
        state, ids, filtered, common = _prepare(*arguments)
        scores: CandidateScores = state.candidate_scores
    else:
        state, ids, filtered, common = ranks.run_together(lambda: _prepare(*arguments))
        ranks.compare("triples and vectors", ids, filtered.composition, state.num_entities)
        scores, rank = state.candidate_scores, partial(rank_shares, ranks)
        if state.graph_scorer is None:
            pieces = [len(rows) for rows in state.rows.slices(state.scorer.step)]
            if len(pieces) >= ranks.size:
                first, end = shard_bounds(len(pieces), ranks)
                bounds = sum(pieces[:first]), sum(pieces[:end])
                scores = _scores_between(state, bounds)
                rank = partial(rank_shards, ranks, bounds=bounds)
    notes = common.pop("notes")
    result = rank(
        lambda head, rel: scores(head, rel, "tail"),
        lambda rel, tail: scores(tail, rel, "head"),
        ids,
        filtered,
        progress=progress and (ranks is None or ranks.is_first),
        **common,
    )
    return replace(result, notes=tuple(notes))


def _scores_between(state: ModelState, bounds: tuple[int, int]) -> CandidateScores:
    """The scores of some entities, in the pieces that one process goes through."""
    scorer = CandidateScorer(
        state.kge,
        state.trained.sheaf,
        state.rows.between(*bounds),
        state.section_weight,
        state.scorer.step,
    )
    return lambda entity, relation, side: scorer.scores(state.rows.select(entity), relation, side)


def _prepare(
    state: ModelState,
    triples: TripleInput,
    known: TripleInput | None,
    on_unknown_entity: UnknownEntity,
    facts: TripleInput | None,
    features: FeatureTable | None,
) -> tuple[ModelState, Tensor, TripleFilter, dict[str, Any]]:
    """The model, the triples to rank, the filter, and what else the ranking is given."""
    given = label_triples(triples, state.relations)
    others = None if known is None else label_triples(known, state.relations)
    check_choice("on_unknown_entity", on_unknown_entity, ("error", "drop", "extend"))
    with_facts = facts is not None or features is not None
    if with_facts != (on_unknown_entity == "extend"):
        raise ValueError(
            "'facts' and 'features' belong to on_unknown_entity='extend', which needs the observed "
            f"facts or features of the unknown entities (got {on_unknown_entity!r} "
            f"{'with' if with_facts else 'without'} them)"
        )
    added = None
    if with_facts:
        added = label_triples(
            () if facts is None else facts, state.relations, may_lack=features is not None
        )
    ranked, notes = _distinct(given), []
    if again := sorted(set(range(len(given))) - set(ranked)):
        number = count_noun(len(again), "triple")
        notes.append(f"{number} given again: each is ranked once ({given.places(again)})")
    if added is not None:
        state = _extend(state, added, given, notes, features)
    without = "vector" if added is None else "fact" if features is None else "fact or feature"
    kept = _exclude_unknown(state, given, ranked, on_unknown_entity, without, notes)
    ids = state.triple_ids(given.select(kept))
    state.check_finite()
    parts = {"facts": state.facts.from_row(0), "ranked": ids}
    if others is not None:
        parts["further"] = _known_triples(state, others, notes)
    common = {
        "num_dropped": len(ranked) - len(kept),
        "test_set": "given",
        "entity_labels": state.index.all_labels(),
        "notes": notes,
    }
    return state, ids, TripleFilter(parts, state.num_entities, len(state.relations)), common


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
    state: ModelState,
    facts: LocatedRows,
    ranked: LocatedRows,
    notes: list[str],
    features: FeatureTable | None,
) -> ModelState:
    """The model with facts that are not triples to rank: what is asked for is never observed."""
    asked = set(map(tuple, ranked))
    own = [row for row, triple in enumerate(facts) if tuple(triple) not in asked]
    if excluded := sorted(set(range(len(facts))) - set(own)):
        notes.append(
            f"{count_noun(len(excluded), 'fact')} left out of the extension, as a triple to "
            f"rank is not a fact ({facts.places(excluded)})"
        )
    if not own and features is None:
        raise DataError(f"no fact is left to extend by: {notes[-1]}")
    if features is not None:
        # What no triple names would only be more candidates.
        named = {label for rows in (facts, ranked) for row in rows for label in (row[0], row[2])}
        known = state.index.lookup(features.labels).tolist()
        pairs = zip(features.labels, known, strict=True)
        features = features.select([label for label, i in pairs if i >= 0 or label in named])
    elif state.trained.features is not None:
        notes.append(
            "the model has a map from features and no features were given: added entities have "
            "their vectors from facts alone (features, --features FILE)"
        )
    state, report = extend(state, facts.select(own), features=features)
    notes.append(
        f"{count_noun(report.new_entities, 'entity')} added from {count_noun(report.facts, 'fact')}"
        + (f" and features of {report.with_features:,}" if features is not None else "")
        + " before ranking"
    )
    return state


def _exclude_unknown(
    state: ModelState,
    triples: LocatedRows,
    rows: list[int],
    action: UnknownEntity,
    without: str,
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
                "observed facts or features of such entities with 'extend'"
            )
            raise DataError(
                f"{error}; {len(lost)} of {count_noun(len(rows), 'triple')} affected "
                f"({triples.places(lost)}). {advice}"
            ) from error
    notes.append(
        f"{count_noun(len(lost), 'triple')} dropped, as {count_noun(len(unknown), 'entity')} "
        f"{agree(len(unknown), 'has', 'have')} no {without} (first: {quote(unknown[0])}; "
        f"{triples.places(lost)})"
    )
    if len(lost) == len(rows):
        raise DataError(f"no triple is left to rank: {notes[-1]}. {advise()}".removesuffix(". "))
    return [row for row, out in zip(rows, missing.any(1).tolist(), strict=True) if not out]
