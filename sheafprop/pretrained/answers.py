from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from sheafprop.checks import check_integer
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import DataError
from sheafprop.pretrained.model_state import ModelState
from sheafprop.query import Query, QueryBatch, parse_query

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 80


def answer_queries(
    state: ModelState,
    queries: str | Query | LocatedRows | Iterable[str | Query],
    k: int,
    explain: bool,
    prior: bool,
) -> "pd.DataFrame":
    """A frame of the best answers to logical queries; see :meth:`SheafModel.answer`."""
    import pandas as pd

    check_integer("k", k, 1)
    if not isinstance(queries, LocatedRows):
        several = [queries] if isinstance(queries, str | Query) else list(queries)
        queries = LocatedRows.number(several, "query", 1)
    given = queries.rows
    parsed = [_parse(state, queries, row) for row in range(len(given))]
    tables: dict[int, list[dict[str, Any]]] = {}
    for batch, rows in QueryBatch.from_queries(parsed, state.entities, state.relations):
        observed = state.executor.answers(batch)
        found = state.query_scorer(prior).answer(batch, k, explain=explain)
        for own, (row, answers) in enumerate(zip(rows.tolist(), found, strict=True)):
            known = set(observed[own].tolist())
            tables[row] = [
                {
                    "query": str(given[row]),
                    "answer": answer.label,
                    "score": answer.score,
                    "energy": answer.energy,
                    "origin": state.index.origins_of(torch.tensor(answer.entity))[0],
                    "known": answer.entity in known,
                    "edge": relation,
                    "edge_energy": energy,
                }
                for answer in answers
                for relation, energy in ([("", 0.0)] if answer.edges is None else answer.edges)
            ]
    kinds = {"query": str, "answer": str, "score": float, "energy": float, "origin": str}
    kinds |= {"known": bool} | ({"edge": str, "edge_energy": float} if explain else {})
    lines = [line for row in sorted(tables) for line in tables[row]]
    return pd.DataFrame(lines, columns=list(kinds)).astype(kinds)


def _parse(state: ModelState, queries: LocatedRows, row: int) -> Query:
    """A query that can be answered, or an error that says which one cannot and why."""
    query = queries.rows[row]
    try:
        parsed = parse_query(query) if isinstance(query, str) else query
        ids = parsed.ids(state.entities, state.relations)
        QueryBatch(parsed.shape, torch.atleast_2d(ids)).conjunctions()
    except ValueError as error:
        if queries.parts == (("query", range(1, 2)),):  # the only one
            raise DataError(str(error)) from error
        text = str(query)
        text = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
        raise DataError(f"{queries.place(row)}, {text}: {error}") from error
    return parsed
