"""Hits@10 of every query type against the ratio of new to known entities, as the paper plots it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.tables.query_tables import AVERAGINGS, query_figures
from sheafprop.files import write_bytes
from sheafprop.query import CONJUNCTIVE

__all__ = ["hits_by_ratio"]

# Told apart also by readers who do not see all colours.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def hits_by_ratio(records: Sequence[dict[str, Any]], path: str | os.PathLike[str]) -> bool:
    r"""Draws Hits@10 by ratio, a column for each query type and a row for each averaging, as a PNG.

    Lines of this library are solid, those of published figures dashed. The file is put in place
    when it is complete.

    Args:
        records (list): What ``scripts/reproduce_queries.py`` wrote.
        path (str): Where to write the picture.

    Returns:
        bool: Whether there was anything to draw; if not, no file is written.
    """
    ratios = sorted({record["ratio"] for record in records}, key=int)
    if not ratios:
        return False
    figure = Figure(figsize=(2.3 * len(CONJUNCTIVE), 7.2), dpi=110)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    rows = figure.subfigures(len(AVERAGINGS), 1, squeeze=False)[:, 0]
    for part, averaging in zip(rows, AVERAGINGS, strict=True):
        columns = [query_figures(records, ratio, averaging) for ratio in ratios]
        methods = list(dict.fromkeys(name for column in columns for name in column))
        methods.sort(key=lambda name: "(published" in name)
        axes = part.subplots(1, len(CONJUNCTIVE), sharey=True)
        part.suptitle(f"Hits@10 (%), {averaging}", fontsize=12)
        for axis, kind in zip(axes, CONJUNCTIVE, strict=True):
            for number, method in enumerate(methods):
                known = [
                    (place, 100 * statistics.fmean(column[method][kind]))
                    for place, column in enumerate(columns)
                    if kind in column.get(method, {})
                ]
                axis.plot(
                    *zip(*known, strict=True),
                    color=_COLORS[number % len(_COLORS)],
                    marker=_MARKERS[number % len(_MARKERS)],
                    linestyle="--" if "(published" in method else "-",
                    markersize=4,
                    linewidth=1.5,
                    label=method,
                )
            axis.set_title(kind, fontsize=11)
            axis.set_xticks(range(len(ratios)), ratios, rotation=90, fontsize=8)
            axis.grid(color="#E3E3E3", linewidth=0.8)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylim(bottom=0)
        part.supxlabel("ratio of the splits (%)", fontsize=10)
        part.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside right upper",
            frameon=False,
            fontsize=8,
        )
    picture = BytesIO()
    figure.savefig(picture, format="png")
    write_bytes(path, picture.getvalue())
    return True
