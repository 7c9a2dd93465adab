import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from sheafprop.checks import check_integer
from sheafprop.data.label_checks import count_noun
from sheafprop.data.triples import LabelTriples, as_label
from sheafprop.errors import DataError
from sheafprop.kernels.backend import all_finite
from sheafprop.kernels.threads import small_operations
from sheafprop.kge.base import Side
from sheafprop.pretrained.candidate_scorer import CandidateScorer
from sheafprop.pretrained.explanation import energy_ratio
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.triple_input import restore_integers

if TYPE_CHECKING:
    import pandas as pd

# Candidates that are scored again, beyond those asked for, by the definition of the score.
_SPARE = 64


class Predictor:
    r"""Scores triples of a model, and finds the best heads and tails.

    Args:
        state (ModelState): The model.
    """

    def __init__(self, state: ModelState):
        self.state = state

    @cached_property
    def scorer(self) -> CandidateScorer:
        """The scores of all entities, with what it keeps of them."""
        state = self.state
        return CandidateScorer(state.kge, state.base.sheaf, state.rows, state.section_weight)

    def predict(
        self,
        side: Side,
        given: str | Sequence[str],
        relation: str | Sequence[str],
        k: int,
        include_known: bool,
        progress: bool = False,
    ) -> "pd.DataFrame":
        """The best entities at a side; see :meth:`SheafModel.predict_tails`."""
        state = self.state
        given = [given] if isinstance(given, str | int) else list(given)
        relation = [relation] * len(given) if isinstance(relation, str | int) else list(relation)
        if len(relation) != len(given):
            raise ValueError(
                f"give one relation, or one for each of the {len(given)} queries (got "
                f"{len(relation)})"
            )
        entity, edge_type = state.index.ids(given), state.relations.ids(relation)
        found = self._answers(side, entity, edge_type, k, include_known, progress)
        frame = self._frame(side, entity, edge_type, found, include_known)
        return restore_integers(frame, given, relation)

    def predict_queries(
        self,
        queries: Sequence[Sequence[Any]],
        k: int,
        include_known: bool,
        skip_unknown: bool,
        progress: bool,
    ) -> "pd.DataFrame":
        """The best entities at the open ends of queries; see :meth:`SheafModel.predict`."""
        import pandas as pd

        rows = self._known(list(queries), skip_unknown)
        frames: list[pd.DataFrame] = []
        ends: tuple[tuple[Side, int, int], ...] = (("tail", 2, 0), ("head", 0, 2))
        for side, open_end, end in ends:
            places = [row for row, query in rows.items() if query[open_end] is None]
            if not places:
                continue
            entity = self.state.index.ids(rows[row][end] for row in places)
            edge_type = self.state.relations.ids(rows[row][1] for row in places)
            found = self._answers(side, entity, edge_type, k, include_known, progress)
            frame = self._frame(side, entity, edge_type, found, include_known)
            frame.index = pd.Index([places[i] for i in found[0].tolist()])
            frames.append(frame)
        if not frames:
            raise DataError("no query is left")
        frame = pd.concat(frames).sort_index(kind="stable").reset_index(drop=True)
        given = [label for query in rows.values() for label in query[::2] if label is not None]
        return restore_integers(frame, given, [query[1] for query in rows.values()])

    def _known(self, queries: list[Sequence[Any]], skip: bool) -> dict[int, Sequence[Any]]:
        """The queries by their number from 1 on, without those with an unknown label."""
        state = self.state
        for number, query in enumerate(queries, 1):
            if len(query) != 3 or (query[0] is None) == (query[2] is None):
                raise DataError(
                    f"query {number} must be (head, relation, tail) with either head or tail open "
                    f"(got {tuple(query)!r})"
                )
        ends = [as_label(query[2] if query[0] is None else query[0]) for query in queries]
        kinds = [as_label(query[1]) for query in queries]
        lost = (state.index.lookup(ends) < 0) | (state.relations.lookup(kinds) < 0)
        if bool(lost.any()):
            row = int(lost.nonzero()[0])
            try:
                state.index.ids([ends[row]])
                state.relations.ids([kinds[row]])
            except DataError as error:
                count = count_noun(int(lost.sum()), "query")
                text = (
                    f"{count} of {len(queries):,} with an unknown label; query {row + 1}: {error}"
                )
                if not skip:
                    raise DataError(text) from error
                warnings.warn(f"skipped {text}", stacklevel=3)
        return {
            number: query
            for number, (query, out) in enumerate(zip(queries, lost.tolist(), strict=True), 1)
            if not out
        }

    def _answers(
        self,
        side: Side,
        entity: Tensor,
        edge_type: Tensor,
        k: int,
        include_known: bool,
        progress: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the answers to queries: the query, the entity, its score and whether it is known.

        Queries are taken by relation, as maps are applied once for all that share one, and the
        answers are in the order of the queries.
        """
        check_integer("k", k, 1)
        state, step = self.state, self.scorer.block_size()
        order = torch.sort(edge_type, stable=True).indices
        if not len(entity):
            return (order,) * 4
        parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        with tqdm(total=len(entity), unit="query", disable=not progress) as bar:
            for rows in order.split(step):
                heads, kinds = entity[rows], edge_type[rows]
                scores = self.scorer.scores(state.rows.select(heads), kinds, side)
                self._check_scores(scores)
                query, known = state.facts.answers(side, heads, kinds)
                if not include_known:
                    scores[query, known] = -torch.inf
                for i, one in enumerate(scores):
                    with small_operations(len(one)):
                        found, value = self._best(one, heads[i], kinds[i], side, k)
                    seen = torch.isin(found, known[query == i])
                    parts.append((rows[i].expand_as(found), found, value, seen))
                bar.update(len(rows))
        where, found, value, seen = (torch.cat(column) for column in zip(*parts, strict=True))
        back = torch.sort(where, stable=True).indices
        return where[back], found[back], value[back], seen[back]

    def _frame(
        self,
        side: Side,
        entity: Tensor,
        edge_type: Tensor,
        answers: tuple[Tensor, Tensor, Tensor, Tensor],
        include_known: bool,
    ) -> "pd.DataFrame":
        import pandas as pd

        state = self.state
        rows, found, value, seen = answers
        columns: dict[str, Any] = {
            "head": state.index.labels_of(entity[rows]),
            "relation": state.relations.labels_of(edge_type[rows]),
            "tail": state.index.labels_of(found),
            "score": value.double().tolist(),
            "origin": state.index.origins_of(found),
        }
        if side == "head":
            columns |= {"head": columns["tail"], "tail": columns["head"]}
        if include_known:
            columns["known"] = seen.tolist()
        frame = pd.DataFrame(columns)
        return frame.astype({name: str for name in ("head", "relation", "tail", "origin")})

    def _check_scores(self, scores: Tensor) -> None:
        """Names the entity, where a vector that is not finite has made scores so."""
        if not all_finite(scores):
            self.state.check_finite()

    def _best(
        self, scores: Tensor, entity: Tensor, relation: Tensor, side: Side, k: int
    ) -> tuple[Tensor, Tensor]:
        """The best candidates by the definition of the score, best first."""
        count = min(k + _SPARE, len(scores))
        value, found = torch.topk(scores, count)
        found = found[value > -torch.inf].sort().values
        known = entity.expand_as(found)
        ends = (known, found) if side == "tail" else (found, known)
        value = self._score(ends[0], relation.expand_as(found), ends[1])
        order = torch.sort(value, descending=True, stable=True).indices[:k]
        return found[order], value[order]

    @torch.no_grad()
    def _score(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        sections, place = self.state.sections(torch.stack([head, tail]))
        score = self.state.kge.score_triples
        parts = [weight * score(x, place[0], relation, place[1]) for weight, x in sections]
        return torch.stack(parts).sum(0)

    def score(self, triples: LabelTriples) -> "pd.DataFrame":
        """Scores of triples; see :meth:`SheafModel.score`."""
        ids = self.state.triple_ids(triples)
        frame = self.state.frame(ids)
        score = self._score(*ids.unbind(1)).double()
        self._check_scores(score)
        frame["score"] = score.tolist()
        frame["ratio"] = energy_ratio(self.state, ids)[1].tolist()
        frame["known"] = self.state.facts.contain(ids).tolist()
        return frame
