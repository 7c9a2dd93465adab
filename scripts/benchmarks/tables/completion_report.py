"""The report of the inductive completion benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tables.completion_figures import (
    completion_by_iteration,
    completion_by_version,
    validation_against_test,
)
from benchmarks.tables.completion_tables import completion_cost_table, completion_table
from sheafprop.files import write_text
from sheafprop.ranking import PROTOCOLS

__all__ = ["completion_report"]

_MARKS = ("paper", "read", "second-hand", "recalled")
_FIGURES = {
    "hits_by_version.png": (completion_by_version, "Hits@10 by version"),
    "hits_by_iteration.png": (completion_by_iteration, "Hits@10 by iteration on validation"),
    "validation_against_test.png": (
        validation_against_test,
        "The paper's settings: iterations chosen on validation, and the best on test",
    ),
}


def completion_report(records: Sequence[dict[str, Any]], folder: Path) -> str:
    r"""Writes tables and figures of the completion benchmarks into a folder and returns the text.

    Args:
        records (list): What ``scripts/reproduce_completion.py`` stores.
        folder (Path): Where ``report.md`` and the pictures are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        "# Inductive completion",
        "Hits@10 in percent (MRR in parentheses), both sides, mean over seeds ± standard error. "
        "Settings are chosen on validation (`merged`: on the training graph); the test triples are "
        "ranked once. Published rows follow tie rules and filters of their own; those marked "
        "recalled or second-hand are not verified.",
    ]
    for protocol in PROTOCOLS:
        table = completion_table(records, protocol, marks=_MARKS)
        if table:
            parts += [f"## {protocol}", PROTOCOLS[protocol].description, table]
    parts += ["## Time and memory", completion_cost_table(records)]
    for name, (draw, title) in _FIGURES.items():
        if draw(records, folder / name):
            parts += [f"## {title}", f"![{title}]({name})"]
    text = "\n\n".join(parts) + "\n"
    write_text(folder / "report.md", text)
    return text
