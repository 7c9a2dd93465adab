"""Published results of other methods, with marks of their reliability."""

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
    r"""Returns the published results for one data set under one protocol.

    Every row holds ``method``, ``protocol``, ``ties`` (None if unknown), ``mark``, ``source``,
    ``note`` (optional), ``hits@10`` as a fraction, ``mrr`` and ``mrr_mark`` (None if not published,
    or not with these marks). For queries, it holds ``hits@10`` by query structure and
    ``averaging``, ``"macro"`` or ``"micro"``; only results with the same averaging are comparable.
    Published results use their own tie-breaking rules and filters, which should be stated wherever
    they are shown.

    Args:
        task (str): ``"completion"`` or ``"queries"``.
        protocol (str): The protocol. ``"full_valid_and_test"`` is ``"merged"`` with realistic ties.
            Queries have one protocol, ``"paper"``.
        dataset (str): The data set, such as ``"fb237_v1"`` (completion) or ``"550"`` (queries).
            Without published results, no rows are returned.
        marks (optional): The marks of the results to return; Hits@10 and MRR of a row may have
            different marks. (default: ``("paper", "read")``)

    Raises:
        ValueError: If the task or the protocol is unknown.
    """
    if task not in _TASKS:
        raise ValueError(f"'task' must be one of {', '.join(_TASKS)} (got {task!r})")
    tables = {
        key: value
        for key, value in _published()[task].items()
        if isinstance(value, dict) and key != "means_of_nine_ratios"
    }
    if protocol not in tables:
        raise ValueError(f"'protocol' must be one of {', '.join(tables)} (got {protocol!r})")
    wanted = set(marks)
    if task == "completion":
        return _completion(tables[protocol], protocol, dataset, wanted)
    return [row for row in _queries(tables[protocol], dataset) if row["mark"] in wanted]


def published_query_means() -> dict[str, dict[str, Any]]:
    """Returns published means over the nine ratios of the FB15k-237 queries, by method.

    Each entry holds ``averaging``, ``ties``, ``source``, ``mark`` and ``note``, and ``hits@10`` (as
    a fraction) and ``mrr`` for ``"without negation"`` (nine query types) and ``"with negation"``
    (five).
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
