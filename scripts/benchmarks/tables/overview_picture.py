"""The picture at the head of the README: what goes in, the diffusion, and what comes out."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from benchmarks.tables.figures import write_picture
from sheafprop import IdentitySheaf, SheafPropagation
from sheafprop.nn import draw_sections

__all__ = ["draw_overview", "main", "propagate"]

_KNOWN, _NEW, _LINE = "#005A8C", "#D55E00", "#7F7F7F"
#: Vectors of the trained model; that of Nice is not among them.
PLACES = {
    "France": (2.0, 0.1),
    "Spain": (1.9, -1.5),
    "Italy": (2.1, 1.6),
    "Paris": (0.0, 0.6),
    "Lyon": (-0.1, -0.05),
    "Madrid": (-0.1, -1.5),
    "Rome": (0.1, 1.6),
    "French": (3.8, 0.0),
    "Spanish": (3.7, -1.6),
    "Italian": (3.9, 1.5),
}
#: Relations of TransE: head + relation = tail.
RELATIONS = {"city of": (2.0, 0.0), "north of": (0.15, -0.75), "speaks": (3.8, 0.1)}
NEW = "Nice"
FACTS = [("Nice", "city of", "France"), ("Lyon", "north of", "Nice")]
OLD_FACTS = [
    ("Paris", "city of", "France"),
    ("Lyon", "city of", "France"),
    ("Madrid", "city of", "Spain"),
    ("Rome", "city of", "Italy"),
]
_STEPS = (0, 1, 2, 16)

Place = tuple[float, float]


def propagate() -> list[Tensor]:
    """Returns the vector of the new entity after each of the shown numbers of steps."""
    names = [*PLACES, NEW]
    x = torch.tensor([*PLACES.values(), (0.0, 0.0)])
    known = torch.arange(len(names)) < len(PLACES)
    kinds = list(RELATIONS)
    edge_index = torch.tensor([[names.index(h), names.index(t)] for h, _, t in FACTS]).T
    edge_type = torch.tensor([kinds.index(relation) for _, relation, _ in FACTS])
    layer = SheafPropagation(step_size=0.5)
    sheaf = IdentitySheaf(torch.tensor(list(RELATIONS.values())))
    start = draw_sections(x.unsqueeze(1), known, seed=4)
    plan = layer.plan(start.transpose(0, 1), edge_index, edge_type, sheaf, boundary_mask=known)
    return [vectors[-1, 0] for _, vectors in layer.trajectory(plan, start, _STEPS)]


def draw_overview(path: str | os.PathLike[str]) -> None:
    r"""Draws the overview as a PNG: a TransE model in the plane, a new entity, its prediction.

    The positions are those that :class:`~sheafprop.SheafPropagation` computes.

    Args:
        path (str): Where to write the picture.
    """
    figure = Figure(figsize=(13.2, 4.3), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    vectors = propagate()
    _draw_input(left)
    _draw_diffusion(middle, vectors)
    _draw_answer(right, vectors[-1])
    for axis in (left, middle, right):
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_color("#D0D0D0")
    write_picture(figure, path)


def _draw_input(axis: Axes) -> None:
    axis.set_title("1. A trained model, and facts about a new entity", fontsize=11)
    for head, relation, tail in OLD_FACTS:
        _arrow(axis, PLACES[head], PLACES[tail], _LINE, relation if head == "Rome" else "")
    for name, place in PLACES.items():
        _point(axis, place, _KNOWN, name)
    # Anywhere: it has no vector yet.
    spot = (1.0, -0.72)
    _arrow(axis, spot, PLACES["France"], _NEW, "city of", dashed=True, at=0.42, below=True)
    _arrow(axis, PLACES["Lyon"], spot, _NEW, "north of", dashed=True, at=0.42, below=True)
    axis.plot(*spot, "o", color="white", markeredgecolor=_NEW, markersize=9, markeredgewidth=2)
    _write(axis, spot, f"{NEW} (new, no vector)", _NEW, (9, -8))
    _legend(axis, ((_KNOWN, "-", "known entity"), (_NEW, "--", "new fact")))
    axis.set_xlim(-0.9, 4.9)
    axis.set_ylim(-2.6, 2.3)


def _draw_diffusion(axis: Axes, vectors: list[Tensor]) -> None:
    axis.set_title("2. Diffusion moves its vector to where the facts agree", fontsize=11)
    spots = [_place(vector) for vector in vectors]
    france, lyon = PLACES["France"], PLACES["Lyon"]
    proposals = {
        "France \N{MINUS SIGN} city of": (france[0] - 2.0, france[1]),
        "Lyon + north of": (lyon[0] + 0.15, lyon[1] - 0.75),
    }
    for name, place in proposals.items():
        axis.plot(*place, "s", color=_KNOWN, markersize=7)
        above = "+" not in name
        _write(axis, place, name, _KNOWN, (-8, 9) if above else (-8, -17))
        axis.plot(*zip(place, spots[-1], strict=True), color=_KNOWN, linewidth=1, linestyle=":")
    axis.plot(*zip(*spots, strict=True), color=_NEW, linewidth=1.4)
    for number, (count, spot) in enumerate(zip(_STEPS, spots, strict=True)):
        last = number == len(spots) - 1
        axis.plot(*spot, "o", color=_NEW, markersize=10 if last else 6)
        text = "random start" if count == 0 else f"{NEW}, {count} steps" if last else f"{count}"
        _write(axis, spot, text, _NEW, (9, -4) if last or count == 0 else (4, 7))
    axis.text(
        0.5, 0.03, "squares: where each fact alone would put it\n"
        "only relations are used; nothing is trained",
        transform=axis.transAxes, ha="center", fontsize=8.5, color="#404040",
    )  # fmt: skip
    every = [*spots, *proposals.values()]
    xs, ys = zip(*every, strict=True)
    axis.set_xlim(min(xs) - 0.55, max(xs) + 0.9)
    axis.set_ylim(min(ys) - 0.6, max(ys) + 0.35)


def _draw_answer(axis: Axes, vector: Tensor) -> None:
    axis.set_title(f"3. Its vector answers queries: what does {NEW} speak?", fontsize=11)
    spot = _place(vector)
    reached = _place(vector + torch.tensor(RELATIONS["speaks"]))
    for name, place in PLACES.items():
        faded = name not in ("French", "Spanish", "Italian")
        _point(axis, place, "#9FB8CC" if faded else _KNOWN, name)
    axis.plot(*spot, "o", color=_NEW, markersize=10)
    _write(axis, spot, NEW, _NEW, (-4, -17))
    _arrow(axis, spot, reached, _NEW, "speaks", at=0.45)
    scores = {
        name: -float(torch.dist(torch.tensor(PLACES[name]), torch.tensor(reached)).square())
        for name in ("French", "Spanish", "Italian")
    }
    ranked = sorted(scores, key=lambda name: -scores[name])
    rows = [
        f"{i}. {name:8s} {scores[name]:6.2f}".replace("-", "\N{MINUS SIGN}")
        for i, name in enumerate(ranked, 1)
    ]
    axis.text(
        0.03, 0.03, "score = \N{MINUS SIGN}distance\N{SUPERSCRIPT TWO}\n" + "\n".join(rows),
        transform=axis.transAxes, fontsize=9, family="monospace",
        bbox={"facecolor": "white", "edgecolor": "#D0D0D0"},
    )  # fmt: skip
    axis.set_xlim(-0.9, 4.9)
    axis.set_ylim(-3.4, 2.3)


def _place(vector: Tensor) -> Place:
    return float(vector[0]), float(vector[1])


def _point(axis: Axes, place: Place, color: str, name: str) -> None:
    axis.plot(*place, "o", color=color, markersize=6)
    _write(axis, place, name, color, (0, 7), ha="center")


def _write(
    axis: Axes,
    place: Place,
    text: str,
    color: str,
    offset: tuple[int, int],
    ha: str = "left",
) -> None:
    axis.annotate(
        text,
        place,
        xytext=offset,
        textcoords="offset points",
        ha=ha,
        fontsize=9,
        color=color,
        zorder=5,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )


def _arrow(
    axis: Axes,
    start: Place,
    end: Place,
    color: str,
    label: str,
    *,
    dashed: bool = False,
    at: float = 0.5,
    below: bool = False,
) -> None:
    style = {"arrowstyle": "->", "color": color, "shrinkA": 5, "shrinkB": 5}
    style["linestyle"] = "--" if dashed else "-"
    axis.annotate("", end, xytext=start, arrowprops=style)
    middle = (start[0] + at * (end[0] - start[0]), start[1] + at * (end[1] - start[1]))
    if label:
        _write(axis, middle, label, color, (0, -14 if below else 4), ha="center")


def _legend(axis: Axes, entries: tuple[tuple[str, str, str], ...]) -> None:
    (known, _, first), (new, dashes, second) = entries
    axis.plot([], [], "o", color=known, label=first)
    axis.plot([], [], color=new, linestyle=dashes, label=second)
    axis.legend(loc="lower right", fontsize=8.5, frameon=False)


def main() -> None:
    """Draws ``docs/overview.png``, or the file that the command names."""
    parser = argparse.ArgumentParser(description=__doc__)
    place = Path(__file__).parents[3] / "docs" / "overview.png"
    parser.add_argument("path", nargs="?", default=place, type=Path, help="where to write it")
    draw_overview(parser.parse_args().path)
