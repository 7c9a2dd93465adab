"""The figures others published, with marks of how far each can be trusted."""

import functools
import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

_TASKS = ("completion", "queries")
#: The group of figures that lies next to a protocol, and how it differs: a figure of it is never
#: shown without this sentence.
NEIGHBOURS = {
    "merged": (
        "full_valid_and_test",
        "valid + test with realistic ties, so not exactly comparable with `merged`",
    )
}


def published_rows(
    task: str, protocol: str, dataset: str, *, marks: Iterable[str] = ("paper", "read")
) -> list[dict[str, Any]]:
    r"""Returns the published figures for one data set under one protocol.

    Every row holds ``method``, ``protocol``, ``ties`` (None where the rule is not known), ``mark``,
    ``source``, ``note`` (None if there is none), ``hits@10`` as a fraction, ``mrr`` and
    ``mrr_mark`` (None if not published, or not of these marks); for queries, ``hits@10`` by query
    structure and ``averaging``, ``"macro"`` or ``"micro"``, of which only equal ones can be
    compared. The runs behind them broke ties and filtered by rules of their own, which belongs
    beside them wherever they are shown.

    Args:
        task (str): ``"completion"`` or ``"queries"``.
        protocol (str): The protocol; figures of another one are never returned. Of
            ``"full_valid_and_test"`` are those that were ranked as ``"merged"``, but with realistic
            ties. Queries have one, ``"paper"``.
        dataset (str): The data set, such as ``"fb237_v1"`` (completion) or ``"550"`` (queries). One
            without published figures gives no rows.
        marks (optional): The marks of figures to return; a row may have one mark of Hits@10 and
            another of MRR. (default: ``("paper", "read")``)

    Raises:
        ValueError: If the task or the protocol is not among the published ones.
    """
    if task not in _TASKS:
        raise ValueError(f"Expected a task among {', '.join(_TASKS)} (got {task!r})")
    tables = {
        key: value
        for key, value in _published()[task].items()
        if isinstance(value, dict) and key != "means_of_nine_ratios"
    }
    if protocol not in tables:
        raise ValueError(f"Expected a protocol among {', '.join(tables)} (got {protocol!r})")
    wanted = set(marks)
    if task == "completion":
        return _completion(tables[protocol], protocol, dataset, wanted)
    return [row for row in _queries(tables[protocol], dataset) if row["mark"] in wanted]


def published_query_means() -> dict[str, dict[str, Any]]:
    """Published means over the nine ratios of the FB15k-237 queries, by method.

    Each holds ``averaging``, ``ties``, ``source``, ``mark``, ``note``, and by
    ``"without negation"`` (nine query types) and ``"with negation"`` (five) ``hits@10``, as a
    fraction, and ``mrr``.
    """
    kinds = ("without negation", "with negation")
    return {
        method: row | {kind: row[kind] | {"hits@10": row[kind]["hits@10"] / 100} for kind in kinds}
        for method, row in _published()["queries"]["means_of_nine_ratios"].items()
    }


@functools.cache
def _published() -> dict[str, Any]:
    return json.loads((resources.files("sheafprop.report") / "published.json").read_text("utf-8"))


def _completion(
    table: dict[str, Any], protocol: str, dataset: str, marks: set[str]
) -> list[dict[str, Any]]:
    family, _, version = dataset.rpartition("_v")
    if version not in ("1", "2", "3", "4"):
        return []
    index = int(version) - 1
    rows = []
    for method, row in table["rows"].items():
        mark = row.get("mark", row["source"])
        mrr_mark = row.get("mrr_mark", mark)
        hits = row[family][index] if family in row and mark in marks else None
        mrr = row[f"mrr_{family}"][index] if f"mrr_{family}" in row and mrr_mark in marks else None
        if hits is None and mrr is None:
            continue
        if hits is None:
            mark = mrr_mark
        rows.append(
            {
                "method": method,
                "protocol": protocol,
                "ties": table["ties"],
                "mark": mark,
                "source": row["source"],
                "note": row.get("note"),
                "hits@10": None if hits is None else hits / 100,
                "mrr": mrr,
                "mrr_mark": None if mrr is None else mrr_mark,
            }
        )
    return rows


def _queries(table: dict[str, Any], dataset: str) -> list[dict[str, Any]]:
    micro = _published()["queries"]["micro_averaged"]
    return [
        {
            "method": method,
            "mark": "paper",
            "source": "paper",
            "note": None,
            "averaging": "micro" if method in micro else "macro",
            "hits@10": {structure: value / 100 for structure, value in row.items()},
        }
        for method, row in table.get(dataset, {}).items()
    ]
