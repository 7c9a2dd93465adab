"""The figures others published, with marks of how far each can be trusted."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

__all__ = ["published_rows"]

_TASKS = ("completion", "queries")


def published_rows(
    task: str, protocol: str, dataset: str, *, marks: Iterable[str] = ("paper", "read")
) -> list[dict[str, Any]]:
    r"""Returns the published figures for one data set under one protocol.

    Every row holds ``method``, ``mark``, ``source``, ``note`` (None if there is none), ``hits@10``
    as a fraction and ``mrr`` (None if not published); for queries, ``hits@10`` by query structure
    and ``averaging``, ``"macro"`` or ``"micro"``, of which only equal ones can be compared. The
    runs behind them broke ties and filtered by rules of their own, which belongs beside them
    wherever they are shown.

    Args:
        task (str): ``"completion"`` or ``"queries"``.
        protocol (str): The protocol; figures of another one are never returned. Queries have
            one, ``"paper"``.
        dataset (str): The data set, such as ``"fb237_v1"`` (completion) or ``"550"`` (queries). One
            without published figures gives no rows.
        marks (optional): The marks of rows to return. (default: ``("paper", "read")``)

    Raises:
        ValueError: If the task or the protocol is not among the published ones.
    """
    if task not in _TASKS:
        raise ValueError(f"Expected a task among {', '.join(_TASKS)} (got {task!r})")
    tables = {key: value for key, value in _published()[task].items() if isinstance(value, dict)}
    if protocol not in tables:
        raise ValueError(f"Expected a protocol among {', '.join(tables)} (got {protocol!r})")
    find = _completion if task == "completion" else _queries
    wanted = set(marks)
    return [row for row in find(tables[protocol], dataset) if row["mark"] in wanted]


@functools.cache
def _published() -> dict[str, Any]:
    return json.loads((resources.files("sheafprop.report") / "published.json").read_text("utf-8"))


def _completion(table: dict[str, Any], dataset: str) -> list[dict[str, Any]]:
    family, _, version = dataset.rpartition("_v")
    if version not in ("1", "2", "3", "4"):
        return []
    index = int(version) - 1
    rows = []
    for method, row in table["rows"].items():
        hits = row.get(family, [None] * 4)[index]
        mrr = row.get(f"mrr_{family}", [None] * 4)[index]
        if hits is None and mrr is None:
            continue
        rows.append(
            {
                "method": method,
                "mark": row.get("mark", row["source"]),
                "source": row["source"],
                "note": row.get("note"),
                "hits@10": None if hits is None else hits / 100,
                "mrr": mrr,
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
