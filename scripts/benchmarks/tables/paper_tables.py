"""Tables of how the paper's procedure differs from ours."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.tables.figures import NAMES
from sheafprop.report.text import NOTHING, escape, markdown_table

__all__ = ["procedure_table"]

Record = dict[str, Any]


def procedure_table(records: Sequence[Record]) -> str:
    return "\n".join(
        f"{r['dataset']} {r['model']} {r['seed']} | {r['trained']} | {r['step']} | {r['start']} | {r['evaluated']} | {r['iterations']} | {100 * r['hits@10']:.1f}"
        for r in records
    )
