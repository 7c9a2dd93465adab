"""Draws derivations of answers to logical queries as trees."""

import math
from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sheafprop.files import write_bytes

_FACT, _PREDICTED, _AGAINST = "#0072B2", "#D55E00", "#4D4D4D"
_PANELS, _COLUMNS, _SHOWN = 6, 2, 24

Tree = dict[str, Any]
Place = tuple[float, float]


def draw_derivations(answers: Sequence[Tree], path: str | PathLike[str]) -> None:
    """Draws the derivations of the first answers as PNG.

    The given entities are on the left, the answer is on the right. Facts are solid lines,
    predicted links are dashed lines with their probabilities, and links that count against the
    answer are dotted.

    Args:
        answers: Records with ``answer``, ``truth`` and ``derivations``, as in
            ``frame.attrs["derivations"]`` of :meth:`~sheafprop.SheafModel.answer`.
        path: The file.

    Raises:
        StorageError: If the file cannot be written.
    """
    found = [(answer, tree) for answer in answers for tree in answer["derivations"]]
    shown = found[:_PANELS]
    columns = min(_COLUMNS, max(1, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    heights = [1.2 + 0.55 * max((_width(tree) for _, tree in shown), default=1)] * rows
    figure = Figure(figsize=(6.4 * columns, sum(heights) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in panels:
        axis.set_axis_off()
    for axis, (answer, tree) in zip(panels, shown, strict=False):
        axis.set_title(
            f"{_cut(answer['answer'])}: truth {tree['truth']:.3g}", fontsize=9, parse_math=False
        )
        _draw(axis, tree)
    if not shown:
        panels[0].text(0.5, 0.5, "no answer", ha="center")
    lines = [
        Line2D([], [], color=_FACT, linestyle="-", label="fact"),
        Line2D([], [], color=_PREDICTED, linestyle="--", label="predicted"),
        Line2D([], [], color=_AGAINST, linestyle=":", label="counts against"),
    ]
    more = len(found) - len(shown)
    note = f"{more} more not shown" if more else None
    figure.legend(handles=lines, loc="outside lower center", ncols=3, fontsize=8, title=note)
    write_bytes(path, partial(figure.savefig, format="png", dpi=120))


def _draw(axis: Axes, tree: Tree) -> None:
    _draw_branch(axis, tree, (0.0, 0.0), against=False)
    axis.margins(0.25, 0.35)


def _draw_branch(axis: Axes, tree: Tree, place: Place, *, against: bool) -> None:
    """Draws a vertex and, evenly spaced to its left, its premises."""
    x, y = place
    operator = "" if tree["operator"] in ("anchor", "via") else f"{tree['operator']}\n"
    axis.plot(x, y, "o", color="black", markersize=4)
    weight = "bold" if tree["operator"] == "anchor" else "normal"
    axis.annotate(
        operator + _cut(tree["entity"]),
        place,
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        fontweight=weight,
        parse_math=False,
    )
    inner = tree["branches"]
    top = y + (_width(tree) - 1) / 2
    for branch in inner:
        size = _width(branch)
        there = (x - 1, top - (size - 1) / 2)
        top -= size
        below = against ^ (tree["operator"] == "not")
        color, dashes, text = "#999999", "-", ""
        if tree["operator"] == "via":
            known = tree["link"] == "fact"
            color, dashes = (_FACT, "-") if known else (_PREDICTED, "--")
            text = _cut(tree["relation"]) + ("" if known else f"\n{tree['probability']:.3g}")
        if below:
            color, dashes = _AGAINST, ":"
        axis.plot([there[0], x], [there[1], y], color=color, linestyle=dashes, zorder=0)
        middle = ((there[0] + x) / 2, (there[1] + y) / 2)
        axis.annotate(
            text,
            middle,
            xytext=(0, -4),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=7,
            parse_math=False,
        )
        _draw_branch(axis, branch, there, against=below)


def _width(tree: Tree) -> int:
    """Returns the number of leaves of a tree."""
    return max(1, sum(_width(branch) for branch in tree["branches"]))


def _cut(label: str) -> str:
    return label if len(label) <= _SHOWN else f"{label[: _SHOWN - 1]}…"
