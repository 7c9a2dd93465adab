from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from sheafprop.checks import check_integer
from sheafprop.data import Vocabulary
from sheafprop.errors import DataError
from sheafprop.pretrained.model_state import ModelState
from sheafprop.query import (
    Answer,
    EnergyScorer,
    GraphExecutor,
    InteriorPrior,
    Query,
    QueryBatch,
    parse_query,
)

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 80


class QueryAnswers:
    r"""Answers to logical queries over the labels of a model.

    Args:
        state (ModelState): The model.
    """

    def __init__(self, state: ModelState):
        self.state = state
        self._kept: dict[bool, EnergyScorer] = {}

    @cached_property
    def _entities(self) -> Vocabulary:
        return self.state.index.vocabulary()

    def _answering(self, prior: bool) -> EnergyScorer:
        if prior not in self._kept:
            state = self.state
            sheaf, x, facts = state.base.sheaf, state.vectors(), state.facts.from_row(0)
            if prior and len(facts) == 0:
                raise DataError("a prior needs facts, and the model has none")
            state.check_finite()
            self._kept[prior] = EnergyScorer(
                sheaf,
                x,
                entities=self._entities,
                relations=state.relations,
                section_weight=state.section_weight,
                interior_prior=InteriorPrior.of_facts(sheaf, x, facts) if prior else None,
            )
        return self._kept[prior]

    @cached_property
    def _executor(self) -> GraphExecutor:
        state = self.state
        return GraphExecutor(state.facts.from_row(0), state.num_entities, len(state.relations))

    def answer(
        self, queries: str | Query | Iterable[str | Query], k: int, explain: bool, prior: bool
    ) -> "pd.DataFrame":
        """The best answers to queries; see :meth:`SheafModel.answer`."""
        import pandas as pd

        check_integer("k", k, 1)
        given = [queries] if isinstance(queries, str | Query) else list(queries)
        parsed = [self._parsed(query, i, len(given)) for i, query in enumerate(given, 1)]
        tables: dict[int, list[dict[str, Any]]] = {}
        for batch, rows in QueryBatch.from_queries(parsed, self._entities, self.state.relations):
            observed = self._executor.answers(batch)
            found = self._answering(prior).answer(batch, k, explain=explain)
            for own, (row, answers) in enumerate(zip(rows.tolist(), found, strict=True)):
                known = set(observed[own].tolist())
                tables[row] = [
                    {
                        "query": str(given[row]),
                        "answer": answer.label,
                        "score": answer.score,
                        "energy": answer.energy,
                        "origin": self.state.index.origins_of(torch.tensor(answer.entity))[0],
                        "known": answer.entity in known,
                        **edge,
                    }
                    for answer in answers
                    for edge in _edges(answer)
                ]
        kinds = {"query": str, "answer": str, "score": float, "energy": float, "origin": str}
        kinds |= {"known": bool} | ({"edge": str, "edge_energy": float} if explain else {})
        lines = [line for row in sorted(tables) for line in tables[row]]
        return pd.DataFrame(lines, columns=list(kinds)).astype(kinds)

    def _parsed(self, query: str | Query, number: int, total: int) -> Query:
        """A query that can be answered, or an error that says which one cannot and why."""
        try:
            parsed = parse_query(query) if isinstance(query, str) else query
            ids = parsed.ids(self._entities, self.state.relations)
            QueryBatch(parsed.shape, torch.atleast_2d(ids)).conjunctions()
        except ValueError as error:
            if total == 1:
                raise DataError(str(error)) from error
            text = str(query)
            text = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
            raise DataError(f"query {number}, {text}: {error}") from error
        return parsed


def _edges(answer: Answer) -> list[dict[str, Any]]:
    if answer.edges is None:
        return [{}]
    return [{"edge": relation, "edge_energy": energy} for relation, energy in answer.edges]
