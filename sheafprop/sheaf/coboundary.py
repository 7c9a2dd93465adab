"""The coboundary of a relation sheaf and the energy it defines, edge by edge.

These are the definitions, written as directly as possible; the plan computes the same products
without an edge-sized intermediate.
"""

import torch
from torch import Tensor

from sheafprop.kernels.rows import add_rows, take_rows
from sheafprop.sheaf.relation_sheaf import RelationSheaf


def coboundary(x: Tensor, edge_index: Tensor, edge_type: Tensor, sheaf: RelationSheaf) -> Tensor:
    r"""Computes the coboundary :math:`(\delta x)_e = R_t x_t - R_h x_h`.

    See Hansen and Ghrist, "Toward a spectral theory of cellular sheaves" (2019).

    Args:
        x (Tensor): Vertex features ``[..., N, d]``.
        edge_index (Tensor): Heads and tails, int64 ``[2, E]``.
        edge_type (Tensor): Relations, int64 ``[E]``.
        sheaf (RelationSheaf): The restriction maps.

    Returns:
        Tensor: ``[..., E, k]``.
    """
    head, tail = edge_index
    return sheaf.restrict(take_rows(x, -2, tail), edge_type, "tail") - sheaf.restrict(
        take_rows(x, -2, head), edge_type, "head"
    )


def coboundary_adjoint(
    y: Tensor, edge_index: Tensor, edge_type: Tensor, sheaf: RelationSheaf, num_nodes: int
) -> Tensor:
    r"""Computes the adjoint of :func:`coboundary`, :math:`(\delta^* y)_v = \sum_{t(e)=v} R_t^* y_e
    - \sum_{h(e)=v} R_h^* y_e`.

    Args:
        y (Tensor): Edge features ``[..., E, k]``.
        edge_index, edge_type, sheaf: As in :func:`coboundary`.
        num_nodes (int): Number of vertices :math:`N`.

    Returns:
        Tensor: ``[..., N, d]``.
    """
    head, tail = edge_index
    into_tail = sheaf.restrict_adjoint(y, edge_type, "tail")
    into_head = sheaf.restrict_adjoint(y, edge_type, "head")
    out = into_tail.new_zeros(*into_tail.shape[:-2], num_nodes, into_tail.shape[-1])
    return add_rows(add_rows(out, -2, tail, into_tail), -2, head, -into_head)


def edge_energy(
    x: Tensor,
    edge_index: Tensor,
    edge_type: Tensor,
    sheaf: RelationSheaf,
    edge_weight: Tensor | None = None,
) -> Tensor:
    r"""Computes the energy of every triple, :math:`w_e \| R_t x_t - R_h x_h - b_r \|^2`.

    Their sum is the energy :math:`E(x)` of Cobb and Gebhart, with the sign of :math:`b_r` for which
    TransE is :math:`h + r = t`.

    Args:
        x (Tensor): Features ``[..., N, d]``.
        edge_index (Tensor): Heads and tails, int64 ``[2, E]``.
        edge_type (Tensor): Relations, int64 ``[E]``.
        sheaf (RelationSheaf): The restriction maps :math:`R` and translations :math:`b`.
        edge_weight (Tensor, optional): :math:`w_e \ge 0`, ``[E]``. (default: all one)

    Returns:
        Tensor: Real, ``[..., E]``.
    """
    residual = coboundary(x, edge_index, edge_type, sheaf)
    translation = sheaf.translation_of(edge_type)
    if translation is not None:
        residual = residual - translation
    energy = torch.linalg.vector_norm(residual, dim=-1) ** 2
    return energy if edge_weight is None else energy * edge_weight
