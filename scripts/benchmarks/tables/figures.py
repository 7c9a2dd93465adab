"""The figures of the completion and the query benchmark."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from benchmarks.presets import VERSIONS
from benchmarks.tables.query_tables import AVERAGINGS, query_figures
from sheafprop.files import write_bytes
from sheafprop.query import CONJUNCTIVE
from sheafprop.ranking.edge_type_heuristic import HEURISTIC
from sheafprop.report.published import published_rows

__all__ = [
    "completion_by_iteration",
    "completion_by_version",
    "hits_by_ratio",
    "validation_against_test",
]

Record = dict[str, Any]

FAMILIES = {"fb237": "FB15k-237", "WN18RR": "WN18RR", "nell": "NELL-995"}
NAMES = {"rotate": "RotatE", "transe": "TransE", "transr": "TransR", "se": "SE"}
# Told apart also by readers who do not see all colours.
_CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_COLORS = dict(zip(NAMES, _CYCLE, strict=False))
_GREY = _CYCLE[-1]
_STAR: dict[str, Any] = {"marker": "*", "markersize": 13, "linestyle": "", "color": _GREY}


def completion_by_version(records: Sequence[Record], path: str | os.PathLike[str]) -> bool:
    r"""Draws Hits@10 (``full``) by version, beside the paper's, as a PNG.

    A panel for each family; solid lines are the preset ``best``, mean over seeds, dashed lines the
    paper's published figures.

    Returns:
        bool: Whether there was anything to draw.
    """
    full = [r for r in records if r["protocol"] == "full"]
    families = [f for f in FAMILIES if any(r["dataset"].startswith(f) for r in full)]
    if not families:
        return False
    figure, axes = _panels(len(families))
    for axis, family in zip(axes, families, strict=True):
        for model in (*NAMES, HEURISTIC):
            color = _COLORS.get(model, _GREY)
            own = [_mean(full, f"{family}_{v}", model) for v in VERSIONS]
            if not all(map(math.isnan, own)):
                label = f"{NAMES[model]} + sheaf propagation" if model in NAMES else model
                axis.plot(VERSIONS, own, color=color, marker="o", label=label)
            name = f"{NAMES.get(model)} + harmonic extension"
            paper = [_published(f"{family}_{v}", name) for v in VERSIONS]
            if not all(map(math.isnan, paper)):
                axis.plot(
                    VERSIONS, paper, color=color, marker="s", linestyle="--", alpha=0.6,
                    label=f"{NAMES[model]}, the paper's figure",
                )  # fmt: skip
        axis.set_title(FAMILIES[family])
        axis.set_xlabel("version of the data set")
        axis.set_ylabel("test Hits@10 (%), protocol full")
        axis.set_ylim(0, 100)
    _legend(figure, axes)
    write_picture(figure, path)
    return True


def completion_by_iteration(records: Sequence[Record], path: str | os.PathLike[str]) -> bool:
    r"""Draws validation Hits@10 by iteration with the chosen points marked, as a PNG.

    A panel for each data set; the preset ``best``, one seed of every model, the chosen start. The
    curves begin at one iteration, the first that the records have.

    Returns:
        bool: Whether there was anything to draw.
    """
    curves: dict[str, dict[str, Record]] = {}
    for record in records:
        if record["preset"] == "best" and "validation_curve" in record:
            models = curves.setdefault(record["dataset"], {})
            if record["seed"] <= models.get(record["model"], record)["seed"]:
                models[record["model"]] = record
    order = [f"{family}_{version}" for family in FAMILIES for version in VERSIONS]
    datasets = [dataset for dataset in order if dataset in curves]
    if not datasets:
        return False
    figure, axes = _panels(len(datasets), columns=4)
    for axis, dataset in zip(axes, datasets, strict=False):
        for model, record in curves[dataset].items():
            points = [
                (k, 100 * hits) for s, k, hits in record["validation_curve"] if s == record["start"]
            ]
            _curve(axis, points, record["iterations"], _COLORS[model], NAMES[model])
        axis.set_title(dataset)
        axis.set_ylabel("validation Hits@10 (%)")
        axis.set_ylim(0, 100)
    star = Line2D([], [], label="chosen on validation", **_STAR)
    _legend(figure, axes, [star])
    write_picture(figure, path)
    return True


def validation_against_test(records: Sequence[Record], path: str | os.PathLike[str]) -> bool:
    r"""Draws, for the paper's settings, the test Hits@10 at the iterations chosen on validation
    beside the best that any number of iterations reaches on test, as a PNG.

    The second is no result: it tells what choosing the iterations costs.

    Returns:
        bool: Whether there was anything to draw.
    """
    found = [r for r in records if r["preset"] == "paper" and "test_curve" in r]
    if not found:
        return False
    found.sort(key=lambda r: (r["dataset"], r["model"], r["seed"]))
    figure, axis = canvas(9, 1 + 0.35 * len(found))
    labels = [f"{r['dataset']} {NAMES[r['model']]}, seed {r['seed']}" for r in found]
    places = range(len(found))
    axis.barh(
        [p - 0.2 for p in places], [100 * max(h for _, h in r["test_curve"]) for r in found],
        height=0.4, color="#56B4E9", label="best on test (not a result)",
    )  # fmt: skip
    axis.barh(
        [p + 0.2 for p in places], [100 * r["hits@10"] for r in found],
        height=0.4, color="#0072B2", label="chosen on validation",
    )  # fmt: skip
    axis.set_yticks(list(places), labels, fontsize=8)
    axis.set_ylim(len(found) - 0.5, -0.5)
    axis.set_xlim(0, 100)
    axis.set_xlabel("test Hits@10 (%), protocol full, the paper's settings")
    axis.legend(frameon=False, fontsize=8)
    write_picture(figure, path)
    return True


def hits_by_ratio(records: Sequence[dict[str, Any]], path: str | os.PathLike[str]) -> bool:
    r"""Draws Hits@10 by ratio, a column for each query type and a row for each averaging, as a PNG.

    A colour is a model, a line style says whose figures they are. The file is put in place when it
    is complete.

    Args:
        records (list): What ``scripts/reproduce_queries.py`` wrote.
        path (str): Where to write the picture.

    Returns:
        bool: Whether there was anything to draw; if not, no file is written.
    """
    ratios = sorted({record["ratio"] for record in records}, key=int)
    if not ratios:
        return False
    figure = Figure(figsize=(2.6 * len(CONJUNCTIVE), 11), dpi=110)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    rows = figure.subfigures(len(AVERAGINGS), 1, squeeze=False)[:, 0]
    for part, averaging in zip(rows, AVERAGINGS, strict=True):
        columns = [query_figures(records, ratio, averaging) for ratio in ratios]
        methods = list(dict.fromkeys(name for column in columns for name in column))
        looks = {method: _look(method) for method in methods}
        methods.sort(key=lambda name: looks[name]["order"])
        axes = part.subplots(1, len(CONJUNCTIVE), sharey=True)
        part.suptitle(f"Hits@10 (%), {averaging}: {AVERAGINGS[averaging]}", fontsize=12)
        for axis, kind in zip(axes, CONJUNCTIVE, strict=True):
            for method in methods:
                known = [
                    (place, 100 * statistics.fmean(column[method][kind]))
                    for place, column in enumerate(columns)
                    if kind in column.get(method, {})
                ]
                look = {key: value for key, value in looks[method].items() if key != "order"}
                axis.plot(*zip(*known, strict=True), linewidth=1.5, label=method, **look)
            axis.set_title(kind, fontsize=11)
            axis.set_xticks(range(len(ratios)), ratios, rotation=90, fontsize=8)
            _style(axis)
        axes[0].set_ylim(bottom=0)
        part.supxlabel(
            "ratio: entities of the inference graph, in % of those of the training graph",
            fontsize=10,
        )
        part.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside right upper",
            frameon=False,
            fontsize=8,
        )
    write_picture(figure, path)
    return True


def _look(method: str) -> dict[str, Any]:
    """A colour and a marker for each model, a line style for each source of figures."""
    model = method.partition(" (")[0].partition(",")[0].replace("Edge-type Heuristic", HEURISTIC)
    known = [*NAMES.values(), "NodePiece-QE", "NodePiece-QE w/ GNN", HEURISTIC]
    place = known.index(model) if model in known else len(known) - 1
    kinds = {"(published": "--", "best without prior": ":", ", paper": "-."}
    number, line = next(
        ((i, style) for i, (mark, style) in enumerate(kinds.items(), 1) if mark in method), (0, "-")
    )
    if model == HEURISTIC and number == 0:
        line = "-" if "expectation" in method else ":"
    # Hollow markers where only one ratio may be there, and no line tells the source.
    face = "white" if number == len(kinds) else _CYCLE[place]
    return {
        "color": _CYCLE[place],
        "marker": _MARKERS[place],
        "markerfacecolor": face,
        "markersize": 5 if number == len(kinds) else 4,
        "linestyle": line,
        "order": (place, number),
    }


def _curve(
    axis: Axes, points: list[tuple[int, float]], chosen: int, color: str, label: str
) -> None:
    axis.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3.5, label=label)
    stars = [(k, hits) for k, hits in points if k == chosen]
    axis.plot(*zip(*stars, strict=True), **_STAR | {"color": color})
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("iterations, from 1 on")


def _legend(figure: Figure, axes: Sequence[Axes], further: Sequence[Line2D] = ()) -> None:
    """One legend beside all panels, of every line that any of them has."""
    handles: dict[str, Artist] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    handles |= {str(handle.get_label()): handle for handle in further}
    figure.legend(
        list(handles.values()), list(handles), loc="outside right upper", frameon=False, fontsize=8
    )


def _panels(count: int, columns: int = 3) -> tuple[Figure, list[Axes]]:
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(4.2 * columns, 3.6 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axis in axes:
        _style(axis)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def _mean(records: Sequence[Record], dataset: str, model: str) -> float:
    """The mean over seeds, not a number where there is none, which leaves a gap."""
    values = [
        100 * r["hits@10"]
        for r in records
        if r["dataset"] == dataset and r["model"] == model and r["preset"] == "best"
    ]
    return statistics.fmean(values) if values else math.nan


def _published(dataset: str, method: str) -> float:
    for row in published_rows("completion", "full", dataset, marks=("paper",)):
        if row["method"] == method and row["hits@10"] is not None:
            return 100 * row["hits@10"]
    return math.nan


def _style(axis: Axes) -> None:
    axis.grid(color="#E3E3E3", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of one panel."""
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def write_picture(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes a figure as a PNG, which is put in place when it is complete."""
    picture = BytesIO()
    figure.savefig(picture, format="png")
    write_bytes(path, picture.getvalue())
