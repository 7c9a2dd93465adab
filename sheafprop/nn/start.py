"""Starts of a propagation, and the scaling of its result.

All functions take sections ``[N, s, d]``, as :meth:`SheafPropagation.trajectory` does; a layer
itself takes them as ``sections.transpose(0, 1)``.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.rows import scale_rows
from sheafprop.nn.prototypes import RelationPrototypes
from sheafprop.seeding import seeded_normal

Start = Literal["zeros", "random", "prototype", "mixed"]


def draw_sections(
    x: Tensor, boundary_mask: Tensor, *, node_keys: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Draws normally distributed values for the free rows, scaled to the mean norm of the known
    rows.

    The values of a node depend on its key and the seed only, not on the graph. A trained model
    draws new entities by its own :meth:`~sheafprop.kge.KGEModel.draw_entities` instead.

    Args:
        x (Tensor): Features ``[N, s, d]``, whose known rows are kept; to use one row for several
            sections, pass ``x.unsqueeze(1).expand(-1, s, -1)``.
        boundary_mask (Tensor): Known nodes, bool ``[N]``.
        node_keys (Tensor, optional): One int64 key for each node. (default: its index)
        seed (int): Random seed. (default: ``0``)

    Example:
        >>> x, known = torch.ones(3, 4), torch.tensor([True, True, False])
        >>> start = draw_sections(x.unsqueeze(1).expand(-1, 8, -1), known)
        >>> start.shape
        torch.Size([3, 8, 4])
        >>> bool((start[known] == 1).all())
        True
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    free = (~boundary_mask).nonzero().flatten()
    keys = free if node_keys is None else node_keys[free]
    columns = x.shape[1] * x.shape[2] * (2 if x.is_complex() else 1)
    drawn = seeded_normal(keys.cpu().numpy().astype(np.uint64), columns, seed)
    values = torch.from_numpy(drawn).to(device=x.device, dtype=wide.real.dtype)
    values = values / (values.shape[1] / x.shape[1]) ** 0.5
    values = values * _known_length(wide, boundary_mask)
    if x.is_complex():
        values = torch.view_as_complex(values.reshape(free.numel(), *x.shape[1:], 2))
    return x.index_copy(0, free, values.reshape(free.numel(), *x.shape[1:]).to(x.dtype))


def start_sections(
    x: Tensor,
    boundary_mask: Tensor,
    edge_index: Tensor,
    edge_type: Tensor,
    *,
    start: Start,
    random: Tensor | None = None,
    prototypes: RelationPrototypes | None = None,
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Returns the features that a propagation starts from; boundary rows are those of ``x``.

    Args:
        x (Tensor): Features ``[N, s, d]``, or ``[N, 1, d]`` for as many sections as ``random`` has.
        boundary_mask (Tensor): Known nodes, bool ``[N]``.
        edge_index, edge_type (Tensor): Heads and tails ``[2, E]`` and relations ``[E]``, which
            determine the prototypes.
        start (str): Values of the free nodes. ``"zeros"``. ``"random"``: those of ``random``.
            ``"prototype"``: the mean over the node's triple ends of the prototype of that
            (relation, side); random if the node has no such triple. ``"mixed"``: the prototype in
            the first section, random in the others.
        random (Tensor, optional): A random start ``[N, s, d]``, for example from
            :func:`draw_sections`; not needed for ``"zeros"``.
        prototypes (RelationPrototypes, optional): For ``"prototype"`` and ``"mixed"``.
        edge_weight (Tensor, optional): Weights of the triples in the mean, ``[E]``.

    Raises:
        ValueError: If ``start`` is not one of these, or an argument that it requires is missing.
    """
    if start not in ("zeros", "random", "prototype", "mixed"):
        raise ValueError(
            f"'start' must be 'zeros', 'random', 'prototype' or 'mixed' (got {start!r})"
        )
    if random is None and start != "zeros":
        raise ValueError(f"start={start!r} needs 'random', as draw_sections gives it")
    if random is not None:
        x, random = torch.broadcast_tensors(x, random)
    free = (~boundary_mask).nonzero().flatten()
    if start == "zeros" or random is None:
        return x.index_fill(0, free, 0)
    mean = found = None
    if start != "random":
        if prototypes is None:
            raise ValueError(f"start={start!r} needs 'prototypes'")
        mean, found = prototypes.start(edge_index, edge_type, x.shape[0], edge_weight)
        mean, found = mean[free], found[free]
    values = start_values(random[free], start, mean, found)
    return x.index_copy(0, free, values.to(x.dtype))


def start_values(
    random: Tensor, start: Start, mean: Tensor | None = None, found: Tensor | None = None
) -> Tensor:
    """The start of free nodes from random values and means of prototypes.

    Args:
        random (Tensor): Random values ``[n, s, d]``.
        start (str): As in :func:`start_sections`.
        mean (Tensor, optional): Means of prototypes ``[n, d]``, for ``"prototype"`` and
            ``"mixed"``.
        found (Tensor, optional): Which nodes have one, bool ``[n]``.
    """
    if start == "zeros":
        return torch.zeros_like(random)
    if mean is None or found is None:
        return random
    replaced = torch.where(found.view(-1, 1, 1), mean.unsqueeze(1).to(random.dtype), random)
    return replaced if start == "prototype" else torch.cat([replaced[:, :1], random[:, 1:]], 1)


def rescale_sections(x: Tensor, boundary_mask: Tensor, length: float | None = None) -> Tensor:
    """Scales the free rows to the same norm; zero rows do not change.

    Args:
        x (Tensor): Sections ``[N, s, d]``.
        boundary_mask (Tensor): Known nodes, bool ``[N]``.
        length (float, optional): The norm. (default: the mean norm of the known rows, or 1 without
            known rows)
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    length = _known_length(wide, boundary_mask) if length is None else length
    return torch.where(boundary_mask.view(-1, 1, 1), x, scale_rows(wide, length).to(x.dtype))


def _known_length(sections: Tensor, boundary_mask: Tensor) -> float:
    """Mean length of the known rows; 1 where there are none or all are zero."""
    known = sections.detach()[boundary_mask]
    length = float(torch.linalg.vector_norm(known, dim=-1).mean()) if known.numel() else 0.0
    return length or 1.0
