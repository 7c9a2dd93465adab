from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch

from sheafprop.checks import check_integer
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import DataError
from sheafprop.pretrained.model_state import ModelState
from sheafprop.query import Derivation, Query, QueryBatch, explain_answers, parse_query
from sheafprop.query.entity_search import check_bounded

if TYPE_CHECKING:
    import pandas as pd

Interior = Literal["entities", "free"]
Queries = str | Query | LocatedRows | Iterable[str | Query]
Line = dict[str, Any]

_SHOWN = 80
_LINK = {
    "derivation": int,
    "derivation_truth": float,
    "depth": int,
    "source": str,
    "relation": str,
    "target": str,
    "link": str,
    "link_probability": float,
    "negated": bool,
}


def answer_by_entities(
    state: ModelState,
    queries: Queries,
    k: int,
    beam: int | Literal["all"],
    derivations: int,
    min_probability: float,
) -> "pd.DataFrame":
    """A frame of the truest answers to logical queries; see :meth:`SheafModel.answer`."""
    import pandas as pd

    check_integer("k", k, 1)
    check_integer("derivations", derivations, 0)
    if beam != "all":
        check_integer("beam", beam, 1)
    calibration = None if state.trained.calibration is None else state.trained.calibration.truths
    if not 0 <= min_probability <= 1:
        raise ValueError(f"'min_probability' must be between 0 and 1 (got {min_probability})")
    if min_probability and calibration is None:
        raise DataError(
            "'min_probability' needs a calibrated model: truths are not probabilities; see "
            "SheafModel.calibrate, or 'sheafprop calibrate'"
        )
    given, parsed = parse_queries(state, queries)
    scorer = state.entity_scorer(beam)
    lines: dict[int, list[Line]] = {}
    trees: dict[int, list[Line]] = {}
    for batch, rows in QueryBatch.from_queries(parsed, state.index, state.relations):
        observed = state.executor.answers(batch)
        found = scorer.answer(batch, k, calibration=calibration, min_probability=min_probability)
        for own, (row, answers) in enumerate(zip(rows.tolist(), found, strict=True)):
            known = set(observed[own].tolist())
            lines[row], trees[row] = [], []
            reasons: list[list[Derivation]] = [[] for _ in answers]
            if derivations and answers:
                ids = torch.tensor([answer.entity for answer in answers])
                asked = QueryBatch(batch.shape, batch.slots[own].expand(len(ids), -1))
                reasons = explain_answers(scorer, asked, ids, derivations)
            for answer, whys in zip(answers, reasons, strict=True):
                line: Line = {
                    "query": str(given[row]),
                    "answer": answer.label,
                    "truth": answer.truth,
                    "certain": answer.certain,
                }
                if calibration is not None:
                    line["probability"] = answer.probability
                line |= {
                    "origin": state.index.origins_of(torch.tensor(answer.entity))[0],
                    "known": answer.entity in known,
                    "interior": "entities",
                }
                if derivations:
                    lines[row] += [line | link for link in _links(state, whys)]
                    nested = [why.tree(scorer.label, lambda q: _name(state, q)) for why in whys]
                    trees[row].append(line | {"derivations": nested})
                else:
                    lines[row].append(line)
    kinds: dict[str, type] = {"query": str, "answer": str, "truth": float, "certain": bool}
    kinds |= {} if calibration is None else {"probability": float}
    kinds |= {"origin": str, "known": bool, "interior": str}
    kinds |= _LINK if derivations else {}
    table = [line for row in sorted(lines) for line in lines[row]]
    frame = pd.DataFrame(table, columns=list(kinds)).astype(kinds)
    if derivations:
        frame.attrs["derivations"] = [tree for row in sorted(trees) for tree in trees[row]]
    return frame


def _links(state: ModelState, derivations: list[Derivation]) -> list[Line]:
    """A row for each link of each derivation, or one where it needs none, in columns over
    labels."""
    labels, out = state.index, []
    for number, why in enumerate(derivations, 1):
        own = {"derivation": number, "derivation_truth": why.truth}
        links = [
            {
                "depth": link["depth"],
                "source": labels[link["source"]],
                "relation": _name(state, link["relation"]),
                "target": labels[link["target"]],
                "link": "fact" if link["is_fact"] else "predicted",
                "link_probability": link["probability"],
                "negated": link["negated"],
            }
            for link in why.links()
        ]
        none = {"depth": 0, "source": "", "relation": "", "target": labels[why.entity]}
        none |= {"link": "none", "link_probability": 1.0, "negated": False}
        out += [own | link for link in links or [none]]
    return out


def _name(state: ModelState, relation: int) -> str:
    inverse, own = divmod(relation, len(state.relations))
    label = state.relations.labels[own]
    return f"inverse({label})" if inverse else label


def answer_by_energy(
    state: ModelState, queries: Queries, k: int, explain: bool, prior: bool
) -> "pd.DataFrame":
    """A frame of the answers of the least energy; see :meth:`SheafModel.answer`."""
    import pandas as pd

    check_integer("k", k, 1)
    given, parsed = parse_queries(state, queries, "free")
    tables: dict[int, list[Line]] = {}
    for batch, rows in QueryBatch.from_queries(parsed, state.index, state.relations):
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
                    "interior": "free",
                    "edge": relation,
                    "edge_energy": energy,
                }
                for answer in answers
                for relation, energy in ([("", 0.0)] if answer.edges is None else answer.edges)
            ]
    kinds = {"query": str, "answer": str, "score": float, "energy": float, "origin": str}
    kinds |= {"known": bool, "interior": str}
    kinds |= {"edge": str, "edge_energy": float} if explain else {}
    lines = [line for row in sorted(tables) for line in tables[row]]
    return pd.DataFrame(lines, columns=list(kinds)).astype(kinds)


def parse_queries(
    state: ModelState, queries: Queries, interior: Interior = "entities"
) -> tuple[list[str | Query], list[Query]]:
    """Queries as they were given, and as ones that can be answered."""
    if not isinstance(queries, LocatedRows):
        several = [queries] if isinstance(queries, str | Query) else list(queries)
        queries = LocatedRows.number(several, "query", 1)
    parsed = [_parse(state, queries, row, interior) for row in range(len(queries.rows))]
    return list(queries.rows), parsed


def _parse(state: ModelState, queries: LocatedRows, row: int, interior: Interior) -> Query:
    """A query that can be answered, or an error that says which one cannot and why."""
    query = queries.rows[row]
    if not isinstance(query, str | Query):
        raise TypeError(f"a query must be a text or a Query (got {query!r})")
    try:
        parsed = parse_query(query) if isinstance(query, str) else query
        ids = parsed.ids(state.index, state.relations)
        if interior == "free":
            QueryBatch(parsed.shape, torch.atleast_2d(ids)).conjunctions()
        elif parsed.shape.operator == "anchor":
            raise DataError("a query needs a relation: an entity alone asks for nothing")
        else:
            check_bounded(parsed.shape)
    except ValueError as error:
        if queries.parts == (("query", range(1, 2)),):  # the only one
            raise DataError(str(error)) from error
        text = str(query)
        text = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
        raise DataError(f"{queries.place(row)}, {text}: {error}") from error
    return parsed
