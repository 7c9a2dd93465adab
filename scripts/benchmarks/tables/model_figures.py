"""Pictures of a model: which facts an entity contradicts, and where old and new entities lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from torch import Tensor

from benchmarks.tables.figures import canvas, write_picture

if TYPE_CHECKING:
    from sheafprop.pretrained.sheaf_model import SheafModel

__all__ = ["energy_map", "entity_map"]

_OLD, _NEW, _NEIGHBOUR, _LINE = "#9FB8CC", "#D55E00", "#005A8C", "#7F7F7F"
# Where a label may stand beside its point, in points; the first free place is taken.
_OFFSETS = [
    (x, y) for distance in (0, 10, 20, 32) for y in (4 + distance, -10 - distance) for x in (6, -6)
]


def energy_map(
    model: SheafModel, entity: str, path: str | os.PathLike[str], *, limit: int = 20
) -> None:
    r"""Draws the energy of the facts at an entity, largest first, as a PNG.

    Bars are :math:`\| R_t x_t - R_h x_h - b_r \|^2` (with several sections their weighted mean). A
    mark on each bar is the mean energy of the relation in training; a fact above it stands out.

    Args:
        model (SheafModel): The model.
        entity (str): The label of the entity.
        path (str): Where to write the picture.
        limit (int, optional): How many facts are shown. (default: :obj:`20`)

    Raises:
        DataError: If the model does not know the entity.
    """
    facts = model.explain(entity).head(limit)
    rows = zip(facts["head"], facts["relation"], facts["tail"], strict=True)
    arrow = "  \N{RIGHTWARDS ARROW}  "
    labels = [arrow.join(_short(part) for part in row) for row in rows]
    figure, axis = canvas(9.0, 1.7 + 0.28 * len(labels))
    axis.spines[["top", "right"]].set_visible(False)
    colors = [_NEW if ratio > 1 else _OLD for ratio in facts["ratio"]]
    axis.barh(range(len(labels)), facts["energy"], color=colors)
    usual = facts["energy"] / facts["ratio"]
    known = [place for place in range(len(labels)) if 0 < usual.iloc[place] < float("inf")]
    axis.plot(usual.iloc[known], known, "|", color="black", markersize=16, markeredgewidth=2)
    axis.set_yticks(range(len(labels)), labels, fontsize=8, parse_math=False)
    axis.invert_yaxis()
    axis.set_xlabel("energy of the fact")
    axis.set_title(f"which facts fit the vector of {_short(entity)}", parse_math=False)
    handles = [
        Patch(color=_OLD, label="at most the usual energy"),
        Patch(color=_NEW, label="more than the usual energy"),
        Line2D([], [], color="black", marker="|", markersize=12, markeredgewidth=2, linestyle="",
            label="usual: mean of the relation in training"),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    write_picture(figure, path)


def entity_map(
    model: SheafModel,
    path: str | os.PathLike[str],
    *,
    num_old: int = 2000,
    num_named: int = 3,
    num_neighbours: int = 6,
) -> float:
    r"""Draws trained and added entities in the plane of the two largest principal components of
    the trained vectors, as a PNG.

    Complex vectors are taken as pairs of real numbers; an entity with several sections is drawn at
    their mean. Added entities carry their labels, with lines to the entities that facts connect
    them to. The plane shows a part of all distances, so what is far apart here may be close.

    Args:
        model (SheafModel): The model.
        path (str): Where to write the picture.
        num_old (int, optional): At most so many trained entities, evenly chosen, are drawn.
            (default: :obj:`2000`)
        num_named (int, optional): At most so many added entities are named, the first ones.
            (default: :obj:`3`)
        num_neighbours (int, optional): At most so many neighbours of each are named, those whose
            facts fit best. (default: :obj:`6`)

    Returns:
        float: The share of the trained vectors' variance that the plane shows.
    """
    labels = model.labels()
    step = max(1, -(-model.num_trained // num_old))
    old = _rows(model.vectors(labels[: model.num_trained : step]))
    centre = old.mean(0)
    _, values, axes = torch.linalg.svd(old - centre, full_matrices=False)
    total = float(values.square().sum())
    share = float(values[:2].square().sum()) / total if total > 0 else 0.0
    figure, axis = canvas(8.5, 7.0)
    axis.spines[["top", "right"]].set_visible(False)

    def place(names: Sequence[str]) -> np.ndarray:
        return ((_rows(model.vectors(names)) - centre) @ axes[:2].T).numpy()

    x, y = place(labels[: model.num_trained : step]).T
    axis.scatter(x, y, s=9, color=_OLD, label="trained")
    added = labels[model.num_trained :]
    if added:
        named = {
            entity: _neighbours(model, entity)[:num_neighbours] for entity in added[:num_named]
        }
        known = list(dict.fromkeys(n for found in named.values() for n in found if n not in named))
        spots = dict(zip([*named, *known], place([*named, *known]), strict=True))
        for entity, found in named.items():
            for other in found:
                axis.plot(
                    *zip(spots[entity], spots[other], strict=True), color=_LINE, linewidth=0.8
                )
        if known:
            x, y = np.stack([spots[label] for label in known]).T
            axis.scatter(x, y, s=22, color=_NEIGHBOUR, zorder=3, label="connected by a fact")
        x, y = place(added).T
        axis.scatter(x, y, s=34, color=_NEW, zorder=4, label="added")
        texts = {label: _NEW for label in named} | {label: _NEIGHBOUR for label in known}
        _write_names(figure, axis, {label: (spots[label], color) for label, color in texts.items()})
    axis.set_xlabel("first principal component of the trained vectors")
    axis.set_ylabel("second principal component")
    axis.set_title(f"entities ({share:.0%} of the variance; lines: facts of added entities)")
    axis.legend(frameon=False)
    write_picture(figure, path)
    return share


def _neighbours(model: SheafModel, entity: str) -> list[str]:
    """The other ends of the facts at an entity, those of the best fitting facts first."""
    facts = model.explain(entity).iloc[::-1]
    ends = facts["tail"].where(facts["head"] == entity, facts["head"])
    return [label for label in dict.fromkeys(ends) if label != entity]


def _write_names(figure: Figure, axis: Axes, names: dict[str, tuple[np.ndarray, str]]) -> None:
    """Writes labels beside their points, where they cover none written before."""
    figure.draw_without_rendering()
    taken: list[Bbox] = []
    for label, (spot, color) in names.items():
        text = axis.annotate(
            _short(label),
            (float(spot[0]), float(spot[1])),
            xytext=_OFFSETS[0],
            textcoords="offset points",
            fontsize=8,
            color=color,
            parse_math=False,
            zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
        best: tuple[float, Bbox, tuple[int, int]] | None = None
        for offset in _OFFSETS:
            text.set_position(offset)
            text.set_horizontalalignment("left" if offset[0] > 0 else "right")
            box = text.get_window_extent()
            outside = box.width * box.height - _overlap(box, axis.bbox)
            cost = outside + sum(_overlap(box, other) for other in taken)
            if best is None or cost < best[0]:
                best = cost, box, offset
        assert best is not None
        text.set_position(best[2])
        text.set_horizontalalignment("left" if best[2][0] > 0 else "right")
        taken.append(best[1])


def _overlap(one: Bbox, other: Bbox) -> float:
    shared = Bbox.intersection(one, other)
    return 0.0 if shared is None else float(shared.width * shared.height)


def _rows(x: Tensor) -> Tensor:
    """Vectors ``[n, s, d]``, maybe complex, as real rows: the mean over the sections."""
    real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return real.double().mean(1).flatten(1)


def _short(label: str) -> str:
    return label if len(label) <= 40 else f"{label[:39]}\N{HORIZONTAL ELLIPSIS}"
