"""Probabilities of links and answers, fitted on triples that a model has not seen as facts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.errors import DataError
from sheafprop.kge.base import Side
from sheafprop.pretrained.model_calibration import ModelCalibration
from sheafprop.pretrained.model_state import ModelState
from sheafprop.query import (
    EntityScorer,
    GraphExecutor,
    LinkCalibration,
    Query,
    QueryBatch,
    QueryShape,
    ReliabilityTable,
    ScoredRows,
    TruthCalibration,
    TruthPairs,
    easy_and_hard,
)
from sheafprop.query.truth_calibration import structure_name

# Candidates of each row or query that the tables and curves see: those of the highest scores.
_BEST = 64
# Numbers in the scores that are held at once.
_SCORES = 2**24

Pairs = tuple[NDArray[np.float64], NDArray[np.bool_]]


@dataclass(frozen=True)
class CalibrationReport:
    """How well probabilities hold, each half of the entities by what the other half gave.

    Entities are those from which held-out triples lead to the answers of a question, in either
    direction; all answers to a question stay together.

    Args:
        links: Predicted links, the best candidates of every (entity, relation).
        answers: Answers to the queries; None where none were given.
        num_triples: How many triples the model was calibrated on.
        num_known: How many were facts already, and were not counted.
    """

    links: ReliabilityTable
    answers: ReliabilityTable | None
    num_triples: int
    num_known: int

    def to_dict(self) -> dict[str, Any]:
        """Numbers and tables as plain values."""
        tables = {
            name: {
                "expected_calibration_error": table.expected_calibration_error,
                "table": table.records(),
            }
            for name, table in (("links", self.links), ("answers", self.answers))
            if table is not None
        }
        return {"num_triples": self.num_triples, "num_known": self.num_known} | tables

    def summary(self) -> str:
        """The expected calibration errors and tables in plain text."""
        known = f" ({self.num_known:,} are facts already)" if self.num_known else ""
        lines = [f"calibrated on {self.num_triples:,} triples{known}"]
        for name, table in (("links", self.links), ("answers", self.answers)):
            if table is None:
                continue
            error = table.expected_calibration_error
            lines.append(f"{name}: expected calibration error {error:.4f}")
            lines += [
                f"  {row['lower']:.1f} to {row['upper']:.1f}: predicted {row['predicted']:.3f}, "
                f"observed {row['observed']:.3f} of {row['count']:,.0f}"
                for row in table.records()
            ]
        return "\n".join(lines)


@torch.no_grad()
def calibrate(
    state: ModelState, triples: Tensor, queries: Sequence[Query]
) -> tuple[ModelCalibration, CalibrationReport]:
    """The calibration of a model on triples ``[m, 3]``; see :meth:`SheafModel.calibrate`."""
    known = state.facts.contain(triples)
    held = torch.unique(triples[~known], dim=0)
    entities = held[:, [0, 2]].unique()
    if len(held) < 2 or len(entities) < 2:
        raise DataError(
            "a calibration needs at least two triples that are not facts of the model, and two "
            f"entities in them (got {len(held)} and {len(entities)})"
        )
    order = torch.randperm(len(entities), generator=torch.Generator().manual_seed(0))
    halves = [entities[part] for part in order.tensor_split(2)]
    number = len(state.relations)
    found = [
        _probabilities(state, LinkCalibration.fit(_rows(state, held, one), number), held, other)
        for one, other in (halves, halves[::-1])
    ]
    probability, is_true = (np.concatenate(part) for part in zip(*found, strict=True))
    links = LinkCalibration.fit(_rows(state, held, entities), number)
    pairs = {"1p": TruthPairs(np.log(probability), is_true)}
    answers = None
    if queries:
        scorer = EntityScorer(state.link_probabilities(links), 64)
        by_query = _query_pairs(state, scorer, held, queries)
        answers = _cross_fitted(by_query)
        pairs |= _join(by_query)
    truths = TruthCalibration.fit(pairs)
    table = ReliabilityTable.of(probability, is_true)
    report = CalibrationReport(table, answers, len(held), int(known.sum()))
    return ModelCalibration(links, truths), report


def _questions(
    state: ModelState, triples: Tensor, entities: Tensor
) -> Iterator[tuple[int, Tensor, AnswerSets]]:
    """Relation, some of the entities and their true answers among the triples, in parts."""
    number = len(state.relations)
    ends: tuple[tuple[int, int, int], ...] = ((0, 2, 0), (2, 0, number))
    step = max(1, _SCORES // state.num_entities)
    for given, other, offset in ends:
        asked = triples[torch.isin(triples[:, given], entities)]
        for kind in asked[:, 1].unique().tolist():
            own = asked[asked[:, 1] == kind]
            for part in own[:, given].unique().split(step):
                sets = [own[own[:, given] == u, other].tolist() for u in part.tolist()]
                yield kind + offset, part, AnswerSets.from_sets(sets)


def _rows(state: ModelState, triples: Tensor, entities: Tensor) -> Iterator[ScoredRows]:
    """Scores of all entities for every question about the entities, facts excluded."""
    number = len(state.relations)
    for relation, part, answers in _questions(state, triples, entities):
        side: Side = "head" if relation >= number else "tail"
        kinds = torch.full_like(part, relation % number)
        scores = state.candidate_scores(part, kinds, side)
        scores[state.facts.answers(side, part, kinds)] = -torch.inf
        yield ScoredRows(relation, scores, answers)


def _probabilities(
    state: ModelState, links: LinkCalibration, triples: Tensor, entities: Tensor
) -> Pairs:
    """Probabilities of the best candidates of the same questions, and which are true."""
    found: list[Pairs] = []
    probabilities = state.link_probabilities(links)
    number = len(state.relations)
    for relation, part, answers in _questions(state, triples, entities):
        rows = probabilities.log_rows(part, relation).exp()
        side: Side = "head" if relation >= number else "tail"
        kinds = torch.full_like(part, relation % number)
        rows[state.facts.answers(side, part, kinds)] = -1  # facts are certain, not predicted
        is_true = torch.zeros_like(rows, dtype=torch.bool)
        is_true[torch.from_numpy(answers.rows), torch.from_numpy(answers.values).long()] = True
        p, place = rows.topk(min(_BEST, rows.shape[1]))
        kept = p >= 0
        found.append((p[kept].double().numpy(), is_true.gather(1, place)[kept].numpy()))
    probability, true = (np.concatenate(own) for own in zip(*found, strict=True))
    return np.maximum(probability, np.finfo(float).tiny), true


def _query_pairs(
    state: ModelState, scorer: EntityScorer, held: Tensor, queries: Sequence[Query]
) -> list[tuple[QueryShape, Pairs]]:
    """For every query the logs of truth of its best candidates, and which are answers.

    Answers that follow from the facts alone are not counted.
    """
    facts, number = state.facts.from_row(0), len(state.relations)
    executors = [
        GraphExecutor(part, state.num_entities, number)
        for part in (facts, torch.cat([facts, held]))
    ]
    found = []
    for batch, _ in QueryBatch.from_queries(queries, state.index, state.relations):
        easy, hard = easy_and_hard(executors[0], executors[1], batch)
        for rows, truth in scorer.blocks(batch):
            for row, values in zip(rows.tolist(), truth, strict=True):
                values = values.clone()
                values[torch.from_numpy(easy[row]).long()] = -torch.inf
                best, place = values.topk(min(_BEST, len(values)))
                kept = best > -torch.inf
                is_true = np.isin(place[kept].numpy(), hard[row])
                found.append((batch.shape, (best[kept].double().numpy(), is_true)))
    return found


def _join(found: Iterable[tuple[QueryShape, Pairs]]) -> dict[str, TruthPairs]:
    by_name: dict[str, list[Pairs]] = {}
    for shape, pairs in found:
        by_name.setdefault(structure_name(shape), []).append(pairs)
    return {
        name: TruthPairs(*(np.concatenate(part) for part in zip(*own, strict=True)))
        for name, own in by_name.items()
    }


def _cross_fitted(found: Sequence[tuple[QueryShape, Pairs]]) -> ReliabilityTable | None:
    """Every second query by the curves of the others."""
    halves = found[::2], found[1::2]
    p, true = [], []
    for one, other in (halves, halves[::-1]):
        if not any(len(x) for _, (x, _) in one):
            return None
        curves = TruthCalibration.fit(_join(one))
        for shape, (x, is_true) in other:
            p.append(curves.probability(torch.from_numpy(x), shape).numpy())
            true.append(is_true)
    return ReliabilityTable.of(np.concatenate(p), np.concatenate(true))
