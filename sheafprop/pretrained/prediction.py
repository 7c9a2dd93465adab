import warnings
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sheafprop.checks import check_choice, check_integer, count_noun, quote
from sheafprop.data.label_checks import advise_on_order, describe_exchanged
from sheafprop.data.text_rows import LocatedRows
from sheafprop.data.triples import LABEL, as_label
from sheafprop.errors import DataError
from sheafprop.kernels.rows import real_rows
from sheafprop.kernels.threads import small_operations
from sheafprop.kge.base import Side
from sheafprop.pretrained.feature_input import feature_rows
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.triple_input import (
    TripleInput,
    label_triples,
    labels_as_given,
    restore_integers,
    triple_ids,
)
from sheafprop.sheaf import edge_energy

if TYPE_CHECKING:
    import pandas as pd


# Candidates that are scored again, beyond those asked for, by the definition of the score.
_SPARE = 64


def predict(
    state: ModelState,
    side: Side,
    given: str | Sequence[str],
    relation: str | Sequence[str],
    k: int,
    include_known: bool,
) -> "pd.DataFrame":
    """The best entities at a side; see :meth:`SheafModel.predict_tails`."""
    given = [given] if isinstance(given, LABEL) else list(given)
    relation = [relation] * len(given) if isinstance(relation, LABEL) else list(relation)
    if len(relation) != len(given):
        raise ValueError(
            f"give one relation, or one for each of the {len(given)} queries (got {len(relation)})"
        )
    entity, edge_type = state.index.ids(given), state.relations.ids(relation)
    frame = _best_answers(state, side, entity, edge_type, k, include_known)
    return restore_integers(frame.reset_index(drop=True), given, relation)


def predict_queries(
    state: ModelState,
    queries: LocatedRows | Iterable[Sequence[Any]],
    k: int,
    include_known: bool,
    skip_unknown: bool,
    progress: bool,
) -> "pd.DataFrame":
    """The best entities at the open ends of queries; see :meth:`SheafModel.predict`."""
    import pandas as pd

    if not isinstance(queries, LocatedRows):
        queries = LocatedRows.number(list(queries), "query", 1)
    rows = _known_queries(state, queries, skip_unknown)
    frames: list[pd.DataFrame] = []
    ends: tuple[tuple[Side, int, int], ...] = (("tail", 2, 0), ("head", 0, 2))
    for side, open_end, end in ends:
        places = [row for row, query in rows.items() if query[open_end] is None]
        if not places:
            continue
        entity = state.index.ids(rows[row][end] for row in places)
        edge_type = state.relations.ids(rows[row][1] for row in places)
        frame = _best_answers(state, side, entity, edge_type, k, include_known, progress)
        frame.index = pd.Index([places[i] for i in frame.index])
        frames.append(frame)
    if not frames:
        raise DataError("no query is left")
    frame = pd.concat(frames).sort_index(kind="stable").reset_index(drop=True)
    given = [label for query in rows.values() for label in query[::2] if label is not None]
    return restore_integers(frame, given, [query[1] for query in rows.values()])


def _known_queries(state: ModelState, queries: LocatedRows, skip: bool) -> dict[int, Sequence[Any]]:
    """The queries by their row, without those with an unknown label."""
    for row, query in enumerate(queries):
        if len(query) != 3 or (query[0] is None) == (query[2] is None):
            raise DataError(
                f"{queries.place(row)}: a query must be (head, relation, tail) with either head or "
                f"tail open (got {tuple(query)!r})"
            )
    ends = [as_label(query[2] if query[0] is None else query[0]) for query in queries]
    kinds = [as_label(query[1]) for query in queries]
    unknown = (state.index.lookup(ends) < 0) | (state.relations.lookup(kinds) < 0)
    if lost := unknown.nonzero().flatten().tolist():
        try:
            state.index.ids([ends[lost[0]]])
            state.relations.ids([kinds[lost[0]]])
        except DataError as error:
            labels = np.array([tuple(query) for query in queries], dtype=object)
            is_one = len(queries) == 1
            skip_them = "Skip them with skip_unknown=True (--skip-unknown)"
            skip_them = "" if skip or is_one else skip_them
            advice = advise_on_order(labels, state.index, state.relations, skip_them)
            advice = (describe_exchanged(queries, lost, state.relations) + advice).strip()
            text = f"{error}" + (advice and f". {advice}")
            if is_one and not skip:
                raise DataError(f"{queries.place(lost[0])}: {text}") from error
            text = (
                f"{count_noun(len(lost), 'query')} of {len(queries):,} with an unknown label "
                f"({queries.places(lost)}); in the first, {text}"
            )
            if not skip:
                raise DataError(text) from error
            warnings.warn(f"skipped {text}", stacklevel=3)
    return {row: query for row, query in enumerate(queries) if not unknown[row]}


def _best_answers(
    state: ModelState,
    side: Side,
    entity: Tensor,
    edge_type: Tensor,
    k: int,
    include_known: bool,
    progress: bool = False,
) -> "pd.DataFrame":
    """A frame of the best answers to queries, in their order; its index numbers the queries.

    Queries are taken by relation, as maps are applied once for all that share one.
    """
    import pandas as pd

    check_integer("k", k, 1)
    order = torch.sort(edge_type, stable=True).indices
    none = torch.zeros(0, dtype=torch.int64)
    parts: list[tuple[Tensor, ...]] = [(none, none, none.double(), none.bool())]
    with tqdm(total=len(entity), unit="query", disable=not progress) as bar:
        for rows in order.split(state.queries_at_once()) if len(order) else ():
            heads, kinds = entity[rows], edge_type[rows]
            query, known = state.facts.answers(side, heads, kinds)
            best = _best_candidates(state, side, heads, kinds, k, known=(query, known),
                                    include_known=include_known)  # fmt: skip
            for i, (found, value) in enumerate(best):
                seen = torch.isin(found, known[query == i])
                parts.append((rows[i].expand_as(found), found, value, seen))
            bar.update(len(rows))
    where, found, value, seen = (torch.cat(column) for column in zip(*parts, strict=True))
    back = torch.sort(where, stable=True).indices
    where, found = where[back], found[back]
    labels = state.index.labels_of(entity[where]), state.index.labels_of(found)
    head, tail = labels if side == "tail" else labels[::-1]
    columns: dict[str, Any] = {
        "head": head,
        "relation": state.relations.labels_of(edge_type[where]),
        "tail": tail,
        "score": value[back].tolist(),
        "origin": state.index.origins_of(found),
    }
    if state.trained.calibration is not None:
        ends = entity[where], edge_type[where], found
        columns["probability"] = state.probability(side, *ends).tolist()
    if include_known:
        columns["known"] = seen[back].tolist()
    frame = pd.DataFrame(columns, index=where.tolist())
    return frame.astype({name: str for name in ("head", "relation", "tail", "origin")})


def _best_candidates(
    state: ModelState,
    side: Side,
    entity: Tensor,
    relation: Tensor,
    k: int,
    known: tuple[Tensor, Tensor],
    include_known: bool,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The best candidates for each query by the definition of the score, and their scores."""
    by_graph = state.graph_scorer is not None
    best = [BestOf(k if by_graph else k + _SPARE) for _ in entity]
    entities, order = torch.sort(known[1])
    queries = known[0][order]
    for first, scores in state.score_blocks(entity, relation, side):
        state.check_scores(scores)
        if not include_known:
            ends = torch.searchsorted(entities, torch.tensor([first, first + scores.shape[1]]))
            own = slice(*ends.tolist())
            scores[queries[own], entities[own] - first] = -torch.inf
        with small_operations(scores.shape[1]):
            for one, row in zip(best, scores, strict=True):
                one.add(first, row)
    for i, one in enumerate(best):
        found, value = one.found, one.value.double()
        if not by_graph:
            given = entity[i].expand_as(found)
            head, tail = (given, found) if side == "tail" else (found, given)
            value = state.score(head, relation[i].expand_as(found), tail)
        order = torch.sort(value, descending=True, stable=True).indices[:k]
        yield found[order], value[order].double()


class BestOf:
    """The highest scores of those that come block by block; of equal ones, the first.

    Args:
        k (int): How many. Scores of minus infinity are none of them.
    """

    def __init__(self, k: int):
        self.k = k
        self.found = torch.zeros(0, dtype=torch.int64)
        self.value = torch.zeros(0)
        self._least = -torch.inf

    def add(self, first: int, scores: Tensor) -> None:
        """Takes the scores ``[n]`` of the candidates from ``first`` on."""
        # Earlier candidates come before later ones that are equal.
        place = (scores > self._least).nonzero().flatten()
        if len(place) > self.k:
            value = scores[place]
            limit = torch.topk(value, self.k, sorted=False).values.min()
            above, level = (value > limit).nonzero(), (value == limit).nonzero()
            kept = torch.cat([above, level[: self.k - len(above)]]).flatten()
            place = place[kept.sort().values]
        if not len(place):
            return
        found = torch.cat([self.found, place + first])
        value = torch.cat([self.value.to(scores), scores[place]])
        if len(found) > self.k:
            kept = torch.sort(value, descending=True, stable=True).indices[: self.k].sort().values
            found, value = found[kept], value[kept]
        self.found, self.value = found, value
        if len(found) == self.k:
            self._least = float(value.min())


def explain(state: ModelState, target: str | Sequence[str]) -> "pd.DataFrame":
    """The facts at an entity or a triple by energy; see :meth:`SheafModel.explain`."""
    if isinstance(target, LABEL):
        asked, ids = torch.zeros(0, 3, dtype=torch.int64), state.index.ids(target)
    else:
        asked = state.triple_ids(label_triples([tuple(target)]))
        ids = asked[0, [0, 2]]
    facts = state.facts.at(ids)
    if len(asked):
        facts = facts[(facts != asked).any(1)]
    triples = torch.cat([asked, facts])
    energy, ratio = energy_ratio(state, triples)
    first = len(asked)
    order = torch.sort(energy[first:], descending=True, stable=True).indices + first
    order = torch.cat([torch.arange(first), order])
    frame = state.frame(triples[order])
    frame["energy"] = energy[order].tolist()
    frame["ratio"] = ratio[order].tolist()
    frame["fact"] = [*state.facts.contain(asked).tolist(), *[True] * len(facts)]
    given = ([target], []) if isinstance(target, LABEL) else (target[::2], target[1:2])
    frame = restore_integers(frame, *given)
    for row in feature_rows(state, ids.unique()):
        frame.loc[len(frame)] = row
    return frame


def score_triples(
    state: ModelState, triples: TripleInput, skip_unknown: bool = False
) -> "pd.DataFrame":
    """Scores and ratios of triples; see :meth:`SheafModel.score`."""
    if not isinstance(triples, str | PathLike) and iter(triples) is triples:
        triples = list(triples)
    rows = label_triples(triples, state.relations)
    ids = triple_ids(rows, state.index, state.relations, skip_unknown)
    frame = state.frame(ids)
    score = state.score(*ids.unbind(1)).double()
    state.check_scores(score)
    frame["score"] = score.tolist()
    frame["ratio"] = energy_ratio(state, ids)[1].tolist()
    if state.trained.calibration is not None:
        head, relation, tail = ids.unbind(1)
        sides = [
            state.probability("tail", head, relation, tail),
            state.probability("head", tail, relation, head),
        ]
        frame["probability"] = ((sides[0] + sides[1]) / 2).tolist()
    frame["known"] = state.facts.contain(ids).tolist()
    return restore_integers(frame, *labels_as_given(triples))


@torch.no_grad()
def energy_ratio(state: ModelState, triples: Tensor) -> tuple[Tensor, Tensor]:
    """The energy of triples ``[n, 3]``, and its ratio to the mean of its relation in training.

    The ratio is NaN where the relation fits exactly or has no training fact.
    """
    if state.graph_scorer is not None and state.trained.episodes is not None:
        return state.graph_scorer.energy_ratio(triples)
    sections, place = state.sections(triples[:, [0, 2]])
    energy = torch.zeros(len(triples), dtype=torch.float64)
    for weight, x in sections:
        energy += weight * edge_energy(x, place.T, triples[:, 1], state.trained.sheaf).double()
    usual = state.trained.residual_variance.double()[triples[:, 1]]
    return energy, torch.where(usual > 0, energy / usual, torch.nan)


# How far a map may be from one that keeps all lengths up to a factor.
_TOL = 1e-5


@torch.no_grad()
def query_vectors(
    state: ModelState, entities: str | Iterable[str], relation: str, side: Side
) -> Tensor:
    """Vectors whose nearest neighbours are predictions; see :meth:`SheafModel.query_vectors`."""
    check_choice("side", side, ("tail", "head"))
    kind = state.relations.ids([relation])
    if state.graph_scorer is not None:
        raise ValueError(
            "this model scores by the graph of its facts too, which no vector of a query holds: "
            "take with_scores(episodes=False, proximity=0, own_last=False)"
        )
    if state.kge.p != 2 or state.num_sections > 1:
        what = f"the {state.kge.p:g}-norm" if state.num_sections == 1 else "several vectors of each"
        raise ValueError(
            f"nearest neighbours by Euclidean distance are not predictions of this model, which "
            f"scores by {what}: ask predict_tails or predict_heads"
        )
    sheaf, width = state.trained.sheaf, state.kge.hidden_channels
    maps = sheaf.matrices(side, kind, width)[0]
    square = maps.mH @ maps
    scale = square.diagonal().real.mean()
    eye = torch.eye(width, dtype=square.dtype, device=square.device)
    if not (scale > 0 and bool(((square - scale * eye).abs() <= _TOL * scale).all())):
        raise ValueError(
            f"{type(state.kge).__name__} maps {side}s of {quote(relation)} so that distances "
            "change, and what is near in an index of the vectors need not be near there: ask "
            f"predict_{side}s"
        )
    x = state.rows.select(state.index.ids(entities))[:, 0]
    kinds = kind.expand(len(x))
    query = sheaf.restrict(x, kinds, "head" if side == "tail" else "tail")
    shift = sheaf.translation_of(kinds)
    if shift is not None:
        query = query + shift if side == "tail" else query - shift
    # || R x - q ||^2 = s || x - R* q / s ||^2 + what is the same for all x, where R* R = s I.
    return real_rows(sheaf.restrict_adjoint(query, kinds, side) / scale)
