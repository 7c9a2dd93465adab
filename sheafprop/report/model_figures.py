"""Pictures of a model: which facts an entity contradicts, and where old and new entities lie."""

from __future__ import annotations

import os
from io import BytesIO
from typing import TYPE_CHECKING

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from sheafprop.io import write_bytes

if TYPE_CHECKING:
    from sheafprop.service import SheafModel

__all__ = ["energy_map", "entity_map"]

_OLD, _NEW = "#9FB8CC", "#D55E00"


def energy_map(
    model: SheafModel, entity: str, path: str | os.PathLike[str], *, limit: int = 20
) -> None:
    r"""Draws the energy of the facts at an entity, largest first, as a PNG.

    Bars are :math:`\| R_t x_t - R_h x_h - b_r \|^2` (with several sections their weighted mean);
    a fact above what is usual for its relation in training stands out.

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
    labels = ["  ".join(_short(part) for part in row) for row in rows]
    figure, axis = _canvas(9.0, 1.4 + 0.28 * len(labels))
    colors = [_NEW if ratio > 1 else _OLD for ratio in facts["ratio"]]
    axis.barh(range(len(labels)), facts["energy"], color=colors)
    axis.set_yticks(range(len(labels)), labels, fontsize=8, parse_math=False)
    axis.invert_yaxis()
    axis.set_xlabel("energy (orange: more than usual for the relation)")
    axis.set_title(f"facts at {_short(entity)}", parse_math=False)
    _write(figure, path)


def entity_map(model: SheafModel, path: str | os.PathLike[str], *, num_old: int = 2000) -> float:
    r"""Draws trained and added entities in the plane of the two largest principal components of
    the trained vectors, as a PNG.

    Complex vectors are taken as pairs of real numbers; an entity with several sections is drawn at
    their mean.

    Args:
        model (SheafModel): The model.
        path (str): Where to write the picture.
        num_old (int, optional): At most so many trained entities, evenly chosen, are drawn.
            (default: :obj:`2000`)

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
    figure, axis = _canvas(7.5, 6.5)
    x, y = ((old - centre) @ axes[:2].T).T
    axis.scatter(x, y, s=9, color=_OLD, label="trained")
    added = labels[model.num_trained :]
    if added:
        x, y = ((_rows(model.vectors(added)) - centre) @ axes[:2].T).T
        axis.scatter(x, y, s=26, color=_NEW, label="added")
    axis.set_xlabel("first principal component")
    axis.set_ylabel("second principal component")
    axis.set_title(f"entities ({share:.0%} of the variance)")
    axis.legend(frameon=False)
    _write(figure, path)
    return share


def _rows(x: Tensor) -> Tensor:
    """Vectors ``[n, s, d]``, maybe complex, as real rows: the mean over the sections."""
    real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return real.double().mean(1).flatten(1)


def _short(label: str) -> str:
    return label if len(label) <= 40 else f"{label[:39]}\N{HORIZONTAL ELLIPSIS}"


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.add_subplot()
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def _write(figure: Figure, path: str | os.PathLike[str]) -> None:
    picture = BytesIO()
    figure.savefig(picture, format="png")
    write_bytes(path, picture.getvalue())
