"""Figures of validation curves, of inspections and of calibration."""

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from os import PathLike
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from sheafprop.files import write_bytes
from sheafprop.report.inspection import GraphInspection
from sheafprop.report.records import Record, by_dataset, metric_key, run_name

_COLOR = "#0072B2"
_RELATIONS = 20


def draw_inspection(inspection: GraphInspection, path: str | PathLike[str]) -> None:
    """Draws the distribution of degrees and the number of triples per relation, as PNG.

    Raises:
        StorageError: If the file cannot be written.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    value, count = np.unique(np.array(inspection.degrees, dtype=np.int64), return_counts=True)
    left.loglog(value, count, "o", color=_COLOR, markersize=3.5)
    left.set_xlabel("degree")
    left.set_ylabel("entities")
    left.grid(color="#E3E3E3", linewidth=0.8)
    top = list(inspection.relations.items())[:_RELATIONS]
    rest = len(inspection.relations) - len(top)
    right.barh(range(len(top)), [number for _, number in top], color=_COLOR)
    names = [name if len(name) <= 40 else "…" + name[-39:] for name, _ in top]
    right.set_yticks(range(len(top)), names, fontsize=7, parse_math=False)
    right.invert_yaxis()
    right.set_xlabel("triples" + (f" ({rest} more relations not shown)" if rest > 0 else ""))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    write_bytes(path, partial(figure.savefig, format="png", dpi=120))


def draw_reliability(report: Mapping[str, Any]) -> bytes:
    """Draws reliability diagrams as PNG, with one panel per table.

    Perfect calibration is on the diagonal. The size of a point shows its number of predictions.

    Args:
        report: Tables by name, each with ``table`` (a record per bin) and
            ``expected_calibration_error``, see
            :meth:`~sheafprop.pretrained.calibration.CalibrationReport.to_dict`. Other entries are
            ignored.

    Returns:
        The content of the file.
    """
    tables = {name: part for name, part in report.items() if isinstance(part, Mapping)}
    figure = Figure(figsize=(4.6 * max(1, len(tables)), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, max(1, len(tables)), squeeze=False)[0]
    for axis, (name, part) in zip(panels, tables.items(), strict=False):
        predicted, observed, count = (
            np.array([row[key] for row in part["table"]], dtype=np.float64)
            for key in ("predicted", "observed", "count")
        )
        axis.plot([0, 1], [0, 1], color=_GREY, linestyle="--", linewidth=1)
        axis.plot(predicted, observed, color=_COLOR, linewidth=1.4)
        axis.scatter(predicted, observed, 12 + 12 * np.log10(np.maximum(count, 1)), color=_COLOR)
        error = part["expected_calibration_error"]
        axis.set_title(f"{name}: expected calibration error {error:.4f}", fontsize=9)
        axis.set_xlabel("predicted probability")
        axis.set_ylabel("share that is true")
        axis.grid(color="#E3E3E3", linewidth=0.8)
        axis.set_axisbelow(True)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


# Distinguishable for readers with color vision deficiency.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (9, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_PANELS = (("hits@10", "Hits@10 (%)", 100), ("mrr", "MRR", 1))
# Minimum fraction of the scale that an axis spans; less would magnify the noise of a few ranks.
_LEAST_SPAN = 0.1
_GREY = "#4D4D4D"
_BASE: dict[str, Any] = {
    "color": _COLORS[0],
    "linestyle": "-",
    "linewidth": 1.8,
    "marker": "o",
    "markersize": 4.5,
}
_STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 14,
    "markeredgecolor": "black",
    "markeredgewidth": 0.9,
}

_Point = dict[str, Any]
_Styles = dict[str, dict[str, dict[str, Any]]]
_Legend = list[tuple[str, Line2D | None]]


class _Line:
    """The curve of one run, start and step size."""

    def __init__(self, record: Record, points: list[_Point]) -> None:
        # The first of the curve; what was not propagated is appended to it.
        first, selection = points[0], record["selection"]
        self.points = sorted(points, key=lambda point: point["iterations"])
        self.protocol = selection.get("protocol", "full")
        self.traits = {
            "run": run_name(record),
            "start": _setting(first, "start"),
            "step size": _setting(first, "step_size"),
        }
        chosen = selection.get("chosen") or {}
        keys = ("start", "step_size", "iterations")
        wanted = [chosen.get(key) for key in keys]
        found = [point for point in points if [point.get(key) for key in keys] == wanted]
        self.chosen = found[0] if selection.get("on") != "defaults" and found else None


def hits_by_iteration(records: Sequence[Record], path: str | os.PathLike[str]) -> bool:
    r"""Draws validation Hits@10 and MRR against the number of iterations, as a PNG.

    There is one line per run, start and step size. A star marks the selected setting. The vertical
    axes span at least ten points of Hits@10 and 0.1 of MRR. There is one row per data set.

    Args:
        records (list): The records of the runs (their ``metrics.json``).
        path (str): The file, written atomically.

    Returns:
        bool: False if there is nothing to draw and no file is written.
    """
    datasets = {title: _lines(members) for title, members in by_dataset(records).items()}
    datasets = {title: lines for title, lines in datasets.items() if lines}
    if not datasets:
        return False
    every = [line for lines in datasets.values() for line in lines]
    styles, legend = _styles(every)
    figure = Figure(figsize=(11.5, max(4.4 * len(datasets), 0.25 * len(legend) + 0.6)), dpi=130)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    for part, (title, lines) in zip(
        figure.subfigures(len(datasets), 1, squeeze=False)[:, 0], datasets.items(), strict=True
    ):
        protocols = ", ".join(dict.fromkeys(line.protocol for line in lines))
        part.suptitle(f"{title}: validation, {protocols}", parse_math=False, fontsize=13)
        axes = part.subplots(1, len(_PANELS))
        for axis, panel in zip(axes, _PANELS, strict=True):
            _draw(axis, lines, styles, *panel)
    _add_legend(figure, legend)
    with warnings.catch_warnings():
        # Labels in scripts that the font lacks are drawn as boxes, without a warning.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)
        metadata = {"Software": "sheafprop"}
        write_bytes(path, partial(figure.savefig, format="png", metadata=metadata))
    return True


def _setting(point: _Point, key: str) -> str:
    value = point.get(key)
    return "not recorded" if value is None else f"{value:g}" if key == "step_size" else str(value)


def _lines(records: list[Record]) -> list[_Line]:
    lines = []
    for record in records:
        groups: dict[tuple[Any, Any], list[_Point]] = {}
        selection = record.get("selection") or {}
        for point in selection.get("curve", []):
            if point.get("iterations") is not None:
                groups.setdefault((point.get("start"), point.get("step_size")), []).append(point)
        for point in selection.get("unpropagated", []):
            # Without a step its size does not matter: the point belongs to every line of its start.
            for (start, _), points in groups.items():
                if start == point.get("start"):
                    points.append(point)
        lines += [_Line(record, points) for points in groups.values()]
    return lines


def _styles(lines: list[_Line]) -> tuple[_Styles, _Legend]:
    """Assigns colors, dashes and markers to runs, starts and step sizes."""
    values = {
        trait: list(dict.fromkeys(line.traits[trait] for line in lines))
        for trait in lines[0].traits
    }
    varied = [trait for trait, found in values.items() if len(found) > 1] or ["run"]
    channels = dict(zip(varied, ("color", "linestyle", "marker"), strict=False))
    styles: _Styles = {trait: {} for trait in values}
    legend: _Legend = []
    for trait, found in values.items():
        legend += [("", None), (trait, None)] if legend else [(trait, None)]
        channel = channels.get(trait)
        if channel is None:
            legend += [(value, Line2D([], [], linestyle="")) for value in found]
            continue
        looks: Sequence[Any] = {"linestyle": _DASHES, "marker": _MARKERS}.get(channel, _COLORS)
        if channel == "color" and len(found) > len(_COLORS):
            looks = colormaps["turbo"](np.linspace(0.05, 0.95, len(found))).tolist()
        for index, value in enumerate(found):
            style = {channel: looks[index % len(looks)]}
            styles[trait][value] = style
            grey = {"color": _GREY, "marker": "" if channel == "linestyle" else "o"}
            legend.append((value, Line2D([], [], **(_BASE | grey | style))))
    if any(line.chosen for line in lines):
        star = Line2D([], [], linestyle="", color="white", **_STAR)
        legend += [("", None), ("chosen on validation", star)]
    return styles, legend


def _draw(
    axis: Axes, lines: list[_Line], styles: _Styles, metric: str, label: str, scale: int
) -> None:
    decided = {line.traits["run"] for line in lines if line.chosen}
    for line in lines:
        key = metric_key(metric, line.protocol)
        points = [point for point in line.points if point.get(key) is not None]
        style = dict(_BASE)
        for trait, value in line.traits.items():
            style |= styles[trait].get(value, {})
        # Settings that were not selected are drawn lighter.
        style["alpha"] = 1 if line.chosen or line.traits["run"] not in decided else 0.45
        x = [point["iterations"] for point in points]
        axis.plot(x, [scale * point[key] for point in points], **style)
        if line.chosen and line.chosen.get(key) is not None:
            star = _STAR | {"color": style["color"], "zorder": 5}
            axis.plot([line.chosen["iterations"]], [scale * line.chosen[key]], **star)
    # Linear up to 1, so that 0 iterations have a place; logarithmic from there.
    axis.set_xscale("symlog", base=2, linthresh=1, linscale=0.6)
    largest = max(point["iterations"] for line in lines for point in line.points)
    smallest = min(point["iterations"] for line in lines for point in line.points)
    powers = [0, *(2**power for power in range(int(largest).bit_length() + 1))]
    ticks = [tick for tick in powers if smallest <= tick <= largest] or [smallest]
    axis.xaxis.set_major_locator(FixedLocator(ticks[:: 1 + len(ticks) // 10]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.margins(x=0.04, y=0.08)
    least_span(axis, scale)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_xlabel("iterations (0: the start, not propagated)" if smallest == 0 else "iterations")
    axis.set_ylabel(label)
    axis.grid(color="#E3E3E3", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def least_span(axis: Axes, scale: float) -> None:
    """Widens a vertical axis to at least a tenth of ``scale``."""
    low, high = axis.get_ylim()
    span = _LEAST_SPAN * scale
    if high - low < span:
        low = min(max((low + high - span) / 2, -0.01 * scale), 1.01 * scale - span)
        axis.set_ylim(low, low + span)


def _add_legend(figure: Figure, legend: _Legend) -> None:
    nothing = Line2D([], [], linestyle="")
    handles = [handle or nothing for _, handle in legend]
    # The texts are set afterwards, since matplotlib omits labels that start with an underscore.
    box = figure.legend(
        handles, ["x"] * len(legend), loc="outside right upper", frameon=False, handlelength=2.6
    )
    for text, (label, handle) in zip(box.get_texts(), legend, strict=True):
        text.set_parse_math(False)
        text.set_text(label)
        text.set_fontweight("normal" if handle else "bold")
