"""Starts of a propagation, prototypes for them, and the scaling of its result.

All functions take sections ``[N, s, d]``, as :meth:`SheafPropagation.trajectory` does; a layer
itself takes them as ``sections.transpose(0, 1)``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.relation_incidence import RelationIncidence
from sheafprop.kernels.rows import add_rows, scale_rows
from sheafprop.seeding import seeded_normal

# Vectors are gathered for so many numbers at once, about 64 MiB in single precision.
_CHUNK_NUMBERS = 2**24


@dataclass(frozen=True, eq=False)
class RelationPrototypes:
    r"""Mean vector of the known entities at each (relation, side), over training triples.

    Rows are ordered tail sides first: row :math:`r` is the mean vector of the tails of relation
    :math:`r`, row :math:`R + r` that of its heads, each entity counted once for every triple.

    Args:
        mean (Tensor): ``[2R, d]``; rows without triples are zero.
        count (Tensor): Triples behind each row, ``[2R]``.
    """

    mean: Tensor
    count: Tensor

    @classmethod
    def from_triples(
        cls, x: Tensor, edge_index: Tensor, edge_type: Tensor, num_relations: int
    ) -> "RelationPrototypes":
        """Averages vectors over the triples of a training graph.

        Args:
            x (Tensor): Trained vectors ``[N, d]``.
            edge_index (Tensor): Heads and tails, int64 ``[2, E]``.
            edge_type (Tensor): Relations, int64 ``[E]``.
            num_relations (int): Number of relations :math:`R`.
        """
        head, tail = edge_index
        row = torch.cat([edge_type, edge_type + num_relations])
        vertex = torch.cat([tail, head])
        count = torch.bincount(row, minlength=2 * num_relations)
        total = x.new_zeros(2 * num_relations, x.shape[1])
        step = max(1, _CHUNK_NUMBERS // max(1, x.shape[1]))
        for some, of in zip(row.split(step), vertex.split(step), strict=True):
            total = total + add_rows(torch.zeros_like(total), 0, some, x[of])
        return cls(total / count.clamp_min(1).unsqueeze(1), count)

    def start(
        self,
        edge_index: Tensor,
        edge_type: Tensor,
        num_nodes: int,
        edge_weight: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Computes the mean prototype over the triple ends of each vertex, with multiplicity and
        weight.

        Ends of relations without training triples are skipped.

        Args:
            edge_index (Tensor): Heads and tails of the new graph, int64 ``[2, E]``.
            edge_type (Tensor): Relations, int64 ``[E]``.
            num_nodes (int): Number of vertices :math:`N`.
            edge_weight (Tensor, optional): Weights ``[E]``. (default: all one)

        Returns:
            The means ``[N, d]``, and a bool mask ``[N]`` of the vertices that have one.
        """
        real = torch.promote_types(self.mean.real.dtype, torch.float32)
        weight = (
            self.mean.real.new_ones(edge_type.numel(), dtype=real)
            if edge_weight is None
            else edge_weight.to(real)
        )
        ends = RelationIncidence.of_triples(
            edge_index[0], edge_index[1], edge_type, weight, num_nodes, self.count.numel() // 2
        )
        return self.average(ends.sum)

    def average(self, sum_ends: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Computes the same from a function ``sum_ends``, which sums rows of a table ``[2R, d]``
        over the triple ends of each vertex, with their weights."""
        # Sums of half precision would lose what they add.
        mean = self.mean.to(torch.promote_types(self.mean.dtype, torch.float32))
        usable = (self.count > 0).to(mean.real.dtype).unsqueeze(1)
        total = sum_ends(usable)
        found = total.flatten() > 0
        return sum_ends(mean * usable) / torch.where(total > 0, total, 1.0), found


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
