"""Values of the free vertices before the first step."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sheafprop.nn.prototypes import RelationPrototypes
from sheafprop.seeding import seeded_normal

Start = Literal["zeros", "random", "prototype", "mixed"]


def start_sections(
    x: Tensor,
    boundary_mask: Tensor,
    edge_index: Tensor,
    edge_type: Tensor,
    *,
    start: Start | None,
    num_sections: int = 1,
    node_keys: Tensor | None = None,
    prototypes: RelationPrototypes | None = None,
    edge_weight: Tensor | None = None,
    random: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """The features a propagation starts from, ``[N, s, d]``; boundary rows are those of ``x``.

    Args:
        x (Tensor): Given features ``[N, 1, d]``, or ``[N, s, d]`` with ``num_sections`` 1.
        boundary_mask (Tensor): Known vertices, bool ``[N]``.
        edge_index, edge_type, edge_weight: The triples whose ends choose the prototypes.
        start (str, optional): See :class:`~sheafprop.nn.SheafPropagation`.
        num_sections (int): Number of sections :math:`s`.
        node_keys (Tensor, optional): Seeds of the vertices' random starts, int64 ``[N]``.
        prototypes (RelationPrototypes, optional): For ``"prototype"`` and ``"mixed"``.
        random (Tensor, optional): Random starts ``[N, s, d]`` to use instead of normal ones.
        seed (int): Seed of the random starts.

    Raises:
        ValueError: If prototypes are asked for and none are given, or the sections do not fit.
    """
    if num_sections > 1:
        if x.shape[1] != 1:
            raise ValueError(
                f"'x' already has {x.shape[1]} sections: num_sections must be 1 (got "
                f"{num_sections})"
            )
        x = x.expand(-1, num_sections, -1)
    free = ~boundary_mask
    if start is None or not bool(free.any()):
        return x
    if start == "zeros":
        values = torch.zeros_like(x[free])
    elif random is not None:
        values = random[free]
    else:
        values = _random(x, boundary_mask, node_keys, seed)
    if start in ("prototype", "mixed"):
        if prototypes is None:
            raise ValueError(f"start={start!r} needs 'prototypes'")
        mean, found = prototypes.start(edge_index, edge_type, x.shape[0], edge_weight)
        # A vertex that no known relation touches keeps the random start.
        replaced = torch.where(
            found[free].view(-1, 1, 1), mean[free].unsqueeze(1).to(values.dtype), values
        )
        values = (
            replaced if start == "prototype" else torch.cat([replaced[:, :1], values[:, 1:]], 1)
        )
    return x.index_copy(0, free.nonzero().flatten(), values.to(x.dtype))


def known_length(sections: Tensor, boundary_mask: Tensor) -> float:
    """Mean length of the known rows; 1 where there are none or all are zero."""
    known = sections.detach()[boundary_mask]
    length = float(torch.linalg.vector_norm(known, dim=-1).mean()) if known.numel() else 0.0
    return length or 1.0


def _random(x: Tensor, boundary_mask: Tensor, node_keys: Tensor | None, seed: int) -> Tensor:
    free = (~boundary_mask).nonzero().flatten()
    keys = free if node_keys is None else node_keys[free]
    columns = x.shape[1] * x.shape[2] * (2 if x.is_complex() else 1)
    drawn = seeded_normal(keys.cpu().numpy().astype(np.uint64), columns, seed)
    values = torch.from_numpy(drawn).to(device=x.device, dtype=x.real.dtype)
    values = values / (values.shape[1] / x.shape[1]) ** 0.5
    values = values * known_length(x, boundary_mask)
    if x.is_complex():
        values = torch.view_as_complex(values.reshape(free.numel(), *x.shape[1:], 2))
    return values.reshape(free.numel(), *x.shape[1:])
