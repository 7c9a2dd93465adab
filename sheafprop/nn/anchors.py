from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.sheaf.identity_relation import add_identity_relation
from sheafprop.sheaf.relation_sheaf import RelationSheaf


class AnchoredTriples(NamedTuple):
    """The triples of a graph with one more for each anchor, see :func:`add_anchor_triples`."""

    edge_index: Tensor
    edge_type: Tensor
    edge_weight: Tensor
    boundary_mask: Tensor


def add_anchor_triples(
    edge_index: Tensor,
    edge_type: Tensor,
    edge_weight: Tensor | None,
    boundary_mask: Tensor,
    *,
    nodes: Tensor,
    weight: Tensor,
    num_relations: int,
) -> AnchoredTriples:
    """Adds a known vertex behind the others for each anchor, and a triple from it.

    Args:
        edge_index, edge_type (Tensor): Heads and tails ``[2, E]`` and relations ``[E]``.
        edge_weight (Tensor, optional): Weights of the triples, ``[E]``; None for ones.
        boundary_mask (Tensor): Known vertices, bool ``[N]``.
        nodes (Tensor): The vertices that are drawn to an anchor, int64 ``[m]``.
        weight (Tensor): The weights of the anchors, ``[m]``.
        num_relations (int): Number of relations :math:`R`, which is that of these triples.
    """
    if edge_weight is None:
        edge_weight = torch.ones(edge_type.numel(), dtype=weight.dtype, device=nodes.device)
    size = boundary_mask.numel()
    anchors = torch.arange(size, size + nodes.numel(), device=nodes.device)
    return AnchoredTriples(
        torch.cat([edge_index, torch.stack([anchors, nodes])], dim=1),
        torch.cat([edge_type, torch.full_like(nodes, num_relations)]),
        torch.cat([edge_weight, weight.to(edge_weight)]),
        torch.cat([boundary_mask, torch.ones_like(nodes, dtype=torch.bool)]),
    )


class AnchoredGraph(NamedTuple):
    """The inputs of a layer for a graph with one additional boundary node for each anchor.

    Args:
        x (Tensor): Features of the nodes followed by those of the anchors, ``[..., N + m, F]``.
        edge_index, edge_type (Tensor): The triples, followed by those of the anchors.
        sheaf (RelationSheaf): The sheaf with the relation of the anchors as its last one.
        edge_weight (Tensor): Weights of the triples, ``[E + m]``.
        boundary_mask (Tensor): Known vertices, bool ``[N + m]``.
    """

    x: Tensor
    edge_index: Tensor
    edge_type: Tensor
    sheaf: RelationSheaf
    edge_weight: Tensor
    boundary_mask: Tensor


def add_anchors(
    x: Tensor,
    edge_index: Tensor,
    edge_type: Tensor,
    sheaf: RelationSheaf,
    *,
    target: Tensor,
    weight: Tensor,
    nodes: Tensor | None = None,
    edge_weight: Tensor | None = None,
    boundary_mask: Tensor | None = None,
    scale: Tensor | None = None,
) -> AnchoredGraph:
    r"""Adds anchors to a graph, which pull nodes to given targets.

    An anchor adds the term

    .. math::
        \gamma_v \| x_v - m_v \|^2

    to the energy, for a node :math:`v` and its target :math:`m_v`. It is implemented as a triple of
    weight :math:`\gamma_v` between :math:`v` and a boundary node at :math:`m_v`, whose relation has
    identity maps and no translation. All layers and solvers therefore accept the result and compute
    its gradients: unpack it, and keep the first :math:`N` rows of the output. Gradients also flow
    to the targets and the scale.

    Args:
        x (Tensor): Vertex features ``[N, F]`` or ``[B, N, F]``.
        edge_index, edge_type (Tensor): Heads and tails ``[2, E]`` and relations ``[E]``.
        sheaf (RelationSheaf): The restriction maps.
        target (Tensor): :math:`m_v`, ``[m, F]`` or ``[B, m, F]``.
        weight (Tensor): :math:`\gamma_v \ge 0`, ``[m]``.
        nodes (Tensor, optional): The vertices, int64 ``[m]``. (default: all, in their order)
        edge_weight (Tensor, optional): Weights of the triples, ``[E]``. (default: ones)
        boundary_mask (Tensor, optional): Known vertices, bool ``[N]``. (default: none)
        scale (Tensor, optional): A positive factor of all :math:`\gamma_v`, for example a trainable
            one; it scales the maps, because weights of triples have no gradients. (default: one)

    Raises:
        ValueError: If the sizes do not fit each other, or a weight is negative or not finite.

    Example:
        >>> from sheafprop import HarmonicExtension, IdentitySheaf
        >>> x, edge_index = torch.tensor([[1.0], [0.0]]), torch.tensor([[0], [1]])
        >>> graph = add_anchors(
        ...     x, edge_index, torch.tensor([0]), IdentitySheaf(torch.tensor([[2.0]])),
        ...     target=torch.tensor([[9.0]]), weight=torch.tensor([1.0]), nodes=torch.tensor([1]),
        ...     boundary_mask=torch.tensor([True, False]),
        ... )
        >>> *inputs, edge_weight, mask = graph
        >>> layer = HarmonicExtension()
        >>> layer(*inputs, edge_weight=edge_weight, boundary_mask=mask)[:2].flatten().tolist()
        [1.0, 6.0]
    """
    size, count = x.shape[-2], weight.numel()
    nodes = torch.arange(size, device=x.device) if nodes is None else nodes
    if target.shape[-1] != x.shape[-1] or {target.shape[-2], nodes.numel()} != {count}:
        raise ValueError(
            f"'target' must be [..., m, {x.shape[-1]}], 'weight' and 'nodes' [m] (got "
            f"{list(target.shape)}, {list(weight.shape)} and {list(nodes.shape)})"
        )
    bad = ~(torch.isfinite(weight) & (weight >= 0))
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"'weight' must be finite and not negative (got {float(weight[row])} at anchor {row})"
        )
    if boundary_mask is None:
        boundary_mask = torch.zeros(size, dtype=torch.bool, device=x.device)
    if edge_weight is None:
        weight = weight.to(x.real.dtype)
    dtype = torch.promote_types(x.dtype, target.dtype)
    target = target.expand(*x.shape[:-2], count, -1)
    triples = add_anchor_triples(
        edge_index,
        edge_type,
        edge_weight,
        boundary_mask,
        nodes=nodes,
        weight=weight,
        num_relations=sheaf.num_relations,
    )
    return AnchoredGraph(
        torch.cat([x.to(dtype), target.to(dtype)], dim=-2),
        triples.edge_index,
        triples.edge_type,
        add_identity_relation(sheaf, scale, x.shape[-1]),
        triples.edge_weight,
        triples.boundary_mask,
    )
