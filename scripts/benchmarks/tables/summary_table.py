"""The one table of the README: completion, queries and speed, each row with its protocol."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.presets import VERSIONS
from benchmarks.tables.benchmark_tables import conditions
from benchmarks.tables.figures import FAMILIES
from benchmarks.tables.query_tables import (
    AVERAGINGS,
    NEGATION,
    UNIONS,
    mean_of_types,
    query_figures,
)
from sheafprop.query import CONJUNCTIVE
from sheafprop.ranking import PROTOCOLS
from sheafprop.report.published import published_query_means, published_rows
from sheafprop.report.tables import NOTHING, escape, markdown_table

__all__ = ["summary_table"]

Record = dict[str, Any]
_HEADER = ("task", "method", "protocol", "figure", "best published under the same protocol")
#: What is shown of completion: a preset, the model in its records, and the method's name.
_METHODS = (
    ("best", "rotate", "RotatE + sheaf propagation", ("full",)),
    (
        "episodes",
        "rotate + episodes + proximity",
        "RotatE + episodes + proximity",
        ("full", "merged", "sampled50"),
    ),
)
_QUERIES = "RotatE, best"


def summary_table(files: Mapping[str, Sequence[Record]]) -> str:
    r"""Returns one row for each headline figure, as Markdown.

    Completion is Hits@10 in percent on v1 to v4, mean over seeds, beside the published method with
    the best mean under the same protocol. Queries are the mean Hits@10 of seven types at the
    smallest and the largest ratio; those over entities the mean of all ratios. Speed is measured
    against other implementations of the same computation.

    Args:
        files (dict): The records of each results file, by its name without the ending.
    """
    rows = [
        *_completion(files.get("completion", ())),
        *_queries(files.get("queries", ())),
        *_entities(files.get("query_entities", ())),
        *_speed(files),
    ]
    return markdown_table(_HEADER, [[escape(cell) for cell in row] for row in rows], "lllrl")


def _completion(records: Sequence[Record]) -> list[list[str]]:
    rows = []
    for family, title in FAMILIES.items():
        datasets = [f"{family}_{version}" for version in VERSIONS]
        for preset, model, method, protocols in _METHODS:
            for protocol in protocols:
                own = [
                    [
                        r["hits@10"]
                        for r in records
                        if (r["dataset"], r["preset"], r["model"], r["protocol"])
                        == (dataset, preset, model, protocol)
                        and "mark" not in r
                    ]
                    for dataset in datasets
                ]
                if any(own):
                    cells = (100 * statistics.fmean(v) if v else None for v in own)
                    beside = _best_published(protocol, datasets)
                    rows.append(
                        [f"completion, {title} v1 to v4", method, protocol, _row(cells), beside]
                    )
    return rows


def _best_published(protocol: str, datasets: Sequence[str]) -> str:
    assert protocol in PROTOCOLS
    found: dict[str, list[float]] = {}
    for dataset in datasets:
        for row in published_rows("completion", protocol, dataset):
            if row["hits@10"] is not None:
                found.setdefault(row["method"], []).append(100 * row["hits@10"])
    whole = {method: hits for method, hits in found.items() if len(hits) == len(datasets)}
    if not whole:
        return NOTHING
    best = max(whole, key=lambda method: statistics.fmean(whole[method]))
    return f"{best}: {_row(whole[best])}"


def _queries(records: Sequence[Record]) -> list[list[str]]:
    ratios = sorted({record["ratio"] for record in records}, key=int)
    ends = list(dict.fromkeys(ratios[:1] + ratios[-1:]))
    rows = []
    for averaging in AVERAGINGS:
        figures = [query_figures(records, ratio, averaging) for ratio in ends]
        own = [mean_of_types(found.get(_QUERIES, {})) for found in figures]
        if not any(own):
            continue
        published: dict[str, list[float]] = {}
        for found in figures:
            for method, by_type in found.items():
                if "(published" in method and (mean := mean_of_types(by_type)) is not None:
                    published.setdefault(method.partition(" (published")[0], []).append(mean)
        whole = {m: hits for m, hits in published.items() if len(hits) == len(ends)}
        best = max(whole, key=lambda method: statistics.fmean(whole[method]), default=None)
        rows.append(
            [
                f"logical queries, FB15k-237, ratios {' and '.join(ends)}",
                f"{_QUERIES} (energy)",
                f"all entities, realistic ties, {averaging}",
                _row(own),
                f"{best}: {_row(whole[best])}" if best else NOTHING,
            ]
        )
    return rows


def _entities(records: Sequence[Record]) -> list[list[str]]:
    """Mean macro Hits@10 of queries over entities: all ratios, without and with negation.

    The settings of each ratio, or where not all ratios have been ranked with these, one setting.
    """
    ratios, rows = {record["ratio"] for record in records}, []
    for title, types in (
        ("without negation", (*CONJUNCTIVE, *UNIONS)),
        ("with negation", NEGATION),
    ):
        for method in ("entities", "entities, one setting for all ratios"):
            own = [r for r in records if (r["method"], r["averaging"]) == (method, "macro")]
            hits = {(r["ratio"], r["type"]): r["hits@10"] for r in own if r["type"] in types}
            if hits and len(hits) == len(ratios) * len(types):
                break
        else:
            continue
        name = method.partition(", ")[2]
        limits = sorted({record["limit"] for record in own} - {None})
        numbers = " to ".join(dict.fromkeys(f"{limit:,}" for limit in (*limits[:1], *limits[-1:])))
        chosen = f", {numbers} queries per type" if limits else ""
        best, figures = max(
            ((name, row[title]) for name, row in published_query_means().items()),
            key=lambda pair: pair[1]["hits@10"],
        )
        rows.append(
            [
                f"logical queries {title}, FB15k-237, mean of {len(ratios)} ratios",
                f"RotatE, best (entity interiors{', ' * bool(name)}{name})",
                f"all entities, realistic ties, macro{chosen}",
                f"{100 * statistics.fmean(hits.values()):.1f}",
                f"{best}: {100 * figures['hits@10']:.1f} (all queries, ordinal ties)",
            ]
        )
    return rows


def _speed(files: Mapping[str, Sequence[Record]]) -> list[list[str]]:
    rows = []
    for case in files.get("propagation", ()):
        large = case["name"].startswith("power law") and case["maps"] in ("identity", "diagonal")
        if large and case.get("ratio_scatter") is not None:
            rows.append(
                [
                    f"a step on {case['triples']:,} triples, width {case['width']}",
                    f"{case['maps']} maps",
                    _measured(case),
                    f"{case['ratio_scatter']:.1f}x faster",
                    "gather and scatter of PyG",
                ]
            )
    training = files.get("training", ())
    for task, key in (("an epoch of training", "epoch"), ("filtered ranking", "ranking")):
        if training:
            ratios = [case[f"ratio_{key}"] for case in training]
            rows.append(
                [
                    f"{task}, processor time",
                    "TransE, RotatE",
                    "; ".join(dict.fromkeys(map(_measured, training))),
                    f"{min(ratios):.1f}x to {max(ratios):.1f}x faster",
                    "PyKEEN, same model, loss and batches",
                ]
            )
    service = files.get("service", ())
    if service:
        times = [1000 * case["extend_seconds"] for case in service]
        rows.append(
            [
                "adding 1,000 entities to "
                + " or ".join(dict.fromkeys(f"{case['entities']:,}" for case in service)),
                f"{len(times)} models",
                "; ".join(dict.fromkeys(map(_measured, service))),
                f"{min(times):.0f} to {max(times):.0f} ms",
                NOTHING,
            ]
        )
    return rows


def _measured(case: Record) -> str:
    """Threads and runs; where the runs are not stored, what the note says of them."""
    note = f": {case['note'].partition(',')[0]}" if "note" in case and "runs" not in case else ""
    return conditions(case).removesuffix(" with their range") + note


def _row(values: Any) -> str:
    return ", ".join(NOTHING if value is None else f"{value:.1f}" for value in values)
