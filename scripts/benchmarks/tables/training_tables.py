"""The tables of the comparison with PyKEEN, as the README prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.tables.benchmark_tables import measured_on, with_range
from sheafprop.report.text import duration, markdown_table

__all__ = ["training_table", "transductive_table"]

_NAMES = {
    "transe": "TransE",
    "rotate": "RotatE",
    "cross_entropy": "cross entropy over all entities",
    "nssa": "NSSA",
    "codex-s": "CoDEx-S",
}


def training_table(records: Sequence[Mapping[str, Any]]) -> str:
    r"""Returns the measurements of ``scripts/bench_training.py`` as Markdown.

    Args:
        records (list): What the script writes.
    """
    header = (
        *("data", "model", "loss", "d", "batch"),
        *("epoch of", "epoch", "PyKEEN", "ratio"),
        *("ranking of", "ranking", "PyKEEN", "ratio"),
    )
    rows = [
        [
            *(_name(case[key]) for key in ("dataset", "model", "loss")),
            *(str(case[key]) for key in ("hidden_channels", "batch_size")),
            *_task(case, "epoch", "train_triples"),
            *_task(case, "ranking", "test_triples"),
        ]
        for case in records
    ]
    where = "; ".join(dict.fromkeys(measured_on(case, [case]) for case in records))
    return f"{where}\n\n" + markdown_table(header, rows, "lllrrrrrrrrrr")


def transductive_table(records: Sequence[Mapping[str, Any]]) -> str:
    r"""Returns the results of ``scripts/check_transductive.py`` as Markdown, a row per model.

    Args:
        records (list): What the script writes; models that one library lacks are left out.
    """
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for record in records:
        found.setdefault((record["dataset"], record["model"]), {})[record["library"]] = record
    header = ("data", "model", "loss", "d", "epochs", "MRR", "MRR, PyKEEN")
    rows = []
    for (dataset, model), both in found.items():
        if len(both) < 2:
            continue
        ours, theirs = both["sheafprop"], both["pykeen"]
        training = ours["training"]
        rows.append(
            [
                *(_name(value) for value in (dataset, model, training["loss"])),
                *(str(training["hidden_channels"]), str(ours["epochs"])),
                *(f"{record['mrr']:.3f}" for record in (ours, theirs)),
            ]
        )
    return markdown_table(header, rows, "lllrrrr")


def _task(case: Mapping[str, Any], task: str, count: str) -> list[str]:
    shown = (with_range(case, f"seconds_{task}{name}", _seconds) for name in ("", "_pykeen"))
    ratio = with_range(case, f"ratio_{task}", lambda value: f"{value:.1f}x")
    return [f"{case[count]:,} triples", *shown, ratio]


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else duration(value)


def _name(value: str) -> str:
    return _NAMES.get(value, value)
