"""Documents whose tables are made from stored results."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cells import read_records
from benchmarks.default_benchmark import default_table, merged_table
from benchmarks.episode_levers import lever_table
from benchmarks.feature_benchmark import feature_table
from benchmarks.large_graph_walk import walk_table
from benchmarks.new_relations import fold_table
from benchmarks.own_splits import split_table
from benchmarks.serving_benchmark import serving_table
from benchmarks.tables import benchmark_tables, paper_tables
from benchmarks.tables.completion_tables import (
    ablation_table,
    completion_cost_table,
    completion_table,
)
from benchmarks.tables.query_tables import (
    entity_summary,
    entity_table,
    query_curves,
    query_summary,
)
from benchmarks.tables.summary_table import summary_table
from sheafprop.report.tables import result_table

__all__ = ["fill_tables", "marked_documents"]

#: What a marker's second word prints of its file; without one, the file holds records of runs.
_TABLES: dict[str, Callable[[Any], str]] = {
    "": result_table,
    "ablations": ablation_table,
    "completion-cost": completion_cost_table,
    "episodes-cost": lambda records: completion_cost_table(records, "episodes", "peers"),
    "completion-full": partial(completion_table, protocol="full"),
    "completion-merged": partial(completion_table, protocol="merged"),
    "completion-sampled50": partial(completion_table, protocol="sampled50"),
    "defaults": default_table,
    "defaults-merged": merged_table,
    "episode-levers": lever_table,
    "features": feature_table,
    "large-graph": walk_table,
    "new-relations": fold_table,
    "own-splits": split_table,
    "paper-curve": paper_tables.curve_table,
    "paper-leak": paper_tables.leak_table,
    "folder": benchmark_tables.folder_table,
    "paper-procedure": paper_tables.procedure_table,
    "paper-seeds": paper_tables.seeds_table,
    "paper-steps": paper_tables.steps_table,
    "propagation": benchmark_tables.propagation_table,
    "propagation-headline": benchmark_tables.propagation_headline,
    "queries": query_summary,
    "query-curves": query_curves,
    "query-entities": entity_summary,
    "query-entities-types": entity_table,
    "query-speed": benchmark_tables.query_speed_table,
    "serving": serving_table,
    "service": benchmark_tables.service_table,
    "summary": summary_table,
    "training": benchmark_tables.training_table,
    "transductive": benchmark_tables.transductive_table,
}
_MARKED = re.compile(r"(<!-- results (\S+) ?(\S*) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)


def marked_documents(root: Path) -> list[Path]:
    """Returns the documents of a clone that have such tables.

    Args:
        root (Path): The folder of the clone.
    """
    places = [
        root / "README.md",
        *sorted(root.glob("docs/*.md")),
        root / "scripts/results/README.md",
    ]
    return [path for path in places if _MARKED.search(path.read_text(encoding="utf-8"))]


def fill_tables(text: str, root: Path) -> tuple[str, int]:
    r"""Returns a document with every marked table as the stored results have it, and their number.

    A table stands between ``<!-- results FILE KIND -->`` and ``<!-- end -->``; a folder in place
    of the file gives the records of all its files, by name.

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
        return f"{begin}{_TABLES[kind](_read(root / file))}\n{end}"

    return _MARKED.subn(fill, text)


def _read(path: Path) -> Any:
    if path.is_dir():
        return {file.stem: read_records(file) for file in sorted(path.glob("*.jsonl"))}
    return read_records(path)
