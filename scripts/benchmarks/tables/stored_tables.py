"""Documents whose tables are made from stored results."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cells import read_records
from benchmarks.own_splits import split_table
from benchmarks.tables import benchmark_tables, paper_tables
from benchmarks.tables.completion_tables import (
    ablation_table,
    completion_cost_table,
    completion_table,
)
from benchmarks.tables.query_tables import query_curves, query_summary
from sheafprop.report.tables import result_table

__all__ = ["fill_tables"]

#: What a marker's second word prints of its file; without one, the file holds records of runs.
_TABLES: dict[str, Callable[[Any], str]] = {
    "": result_table,
    "ablations": ablation_table,
    "completion-cost": completion_cost_table,
    "episodes-cost": partial(completion_cost_table, preset="episodes"),
    "completion-full": partial(completion_table, protocol="full"),
    "completion-merged": partial(completion_table, protocol="merged"),
    "completion-sampled50": partial(completion_table, protocol="sampled50"),
    "own-splits": split_table,
    "paper-curve": paper_tables.curve_table,
    "paper-leak": paper_tables.leak_table,
    "folder": benchmark_tables.folder_table,
    "paper-procedure": paper_tables.procedure_table,
    "paper-seeds": paper_tables.seeds_table,
    "propagation": benchmark_tables.propagation_table,
    "propagation-headline": benchmark_tables.propagation_headline,
    "queries": query_summary,
    "query-curves": query_curves,
    "query-speed": benchmark_tables.query_speed_table,
    "service": benchmark_tables.service_table,
    "training": benchmark_tables.training_table,
    "transductive": benchmark_tables.transductive_table,
}
_MARKED = re.compile(r"(<!-- results (\S+) ?(\S*) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)


def fill_tables(text: str, root: Path) -> tuple[str, int]:
    r"""Returns a document with every marked table as the stored results have it, and their number.

    A table stands between ``<!-- results FILE KIND -->`` and ``<!-- end -->``.

    Args:
        text (str): The document.
        root (Path): What the files are relative to.

    Raises:
        ValueError: If there is no table of such a kind.
        FormatError: If a file does not hold one record a line.
    """

    def fill(match: re.Match[str]) -> str:
        begin, file, kind, _, end = match.groups()
        if kind not in _TABLES:
            known = ", ".join(name for name in _TABLES if name)
            raise ValueError(f"there is no table {kind!r}; there are {known}")
        return f"{begin}{_TABLES[kind](read_records(root / file))}\n{end}"

    return _MARKED.subn(fill, text)
