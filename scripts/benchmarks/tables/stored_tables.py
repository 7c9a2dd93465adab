"""Documents whose tables are made from stored results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tables.benchmark_tables import (
    propagation_headline,
    propagation_table,
    query_speed_table,
    service_table,
)
from benchmarks.tables.completion_tables import (
    ablation_table,
    completion_cost_table,
    completion_table,
)
from benchmarks.tables.query_tables import query_curves, query_summary
from benchmarks.tables.training_tables import training_table, transductive_table
from sheafprop.errors import FormatError
from sheafprop.report.tables import result_table

__all__ = ["fill_tables"]

#: What a marker's second word prints of its file; without one, the file holds records of runs.
_TABLES: dict[str, Callable[[Any], str]] = {
    "": result_table,
    "ablations": ablation_table,
    "completion-cost": completion_cost_table,
    "completion-full": partial(completion_table, protocol="full"),
    "completion-merged": partial(completion_table, protocol="merged"),
    "completion-sampled50": partial(completion_table, protocol="sampled50"),
    "propagation": propagation_table,
    "propagation-headline": propagation_headline,
    "queries": query_summary,
    "query-curves": query_curves,
    "query-speed": query_speed_table,
    "service": service_table,
    "training": training_table,
    "transductive": transductive_table,
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
        FormatError: If a file is not JSON.
    """

    def fill(match: re.Match[str]) -> str:
        begin, file, kind, _, end = match.groups()
        if kind not in _TABLES:
            known = ", ".join(name for name in _TABLES if name)
            raise ValueError(f"there is no table {kind!r}; there are {known}")
        try:
            stored = json.loads((root / file).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FormatError(f"{root / file} is not JSON ({error})") from error
        return f"{begin}{_TABLES[kind](stored)}\n{end}"

    return _MARKED.subn(fill, text)
