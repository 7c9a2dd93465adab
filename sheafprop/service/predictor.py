from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sheafprop.argument_checks import check_integer
from sheafprop.data.triples import LabelTriples
from sheafprop.kernels.backend import all_finite
from sheafprop.kernels.threads import small_operations
from sheafprop.kge.base import Side
from sheafprop.service.candidate_scorer import CandidateScorer
from sheafprop.service.explanation import energy_ratio
from sheafprop.service.model_state import ModelState

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
    ) -> "pd.DataFrame":
        """The best entities at a side; see :meth:`SheafModel.predict_tails`."""
        import pandas as pd

        check_integer("k", k, 1)
        state = self.state
        given = [given] if isinstance(given, str) else list(given)
        relation = [relation] * len(given) if isinstance(relation, str) else list(relation)
        if len(relation) != len(given):
            raise ValueError(
                f"give one relation, or one for each of the {len(given)} queries (got "
                f"{len(relation)})"
            )
        entity, edge_type = state.index.ids(given), state.relations.ids(relation)
        step = self.scorer.block_size()
        parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for start in range(0, len(given), step):
            rows = slice(start, start + step)
            scores = self.scorer.scores(state.rows.select(entity[rows]), edge_type[rows], side)
            self._check_scores(scores)
            query, known = state.facts.answers(side, entity[rows], edge_type[rows])
            if not include_known:
                scores[query, known] = -torch.inf
            for row, one in enumerate(scores):
                with small_operations(len(one)):
                    best = self._best(one, entity[rows][row], edge_type[rows][row], side, k)
                found, value = best
                where = torch.full_like(found, start + row)
                parts.append((where, found, value, torch.isin(found, known[query == row])))
        rows_of, found, value, seen = (
            torch.cat(column) if column else torch.zeros(0, dtype=torch.int64)
            for column in (zip(*parts, strict=True) if parts else ((),) * 4)
        )
        order = rows_of.tolist()
        columns: dict[str, Any] = {
            "head": [given[i] for i in order],
            "relation": [relation[i] for i in order],
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
