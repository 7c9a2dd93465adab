"""The operators of a sheaf on a small graph as dense matrices, from their definitions alone."""

import torch
from torch import Tensor

from sheafprop.sheaf.relation_sheaf import RelationSheaf, Side
from sheafprop.testing.multigraph import Multigraph


def dense_coboundary(graph: Multigraph, sheaf: RelationSheaf, width: int) -> tuple[Tensor, Tensor]:
    r"""The weighted coboundary :math:`W^{1/2} \delta` and translations :math:`W^{1/2} b`.

    Reads :meth:`~sheafprop.sheaf.RelationSheaf.restriction_map` and
    :meth:`~sheafprop.sheaf.RelationSheaf.translation_of`, edge by edge, and nothing else.

    Args:
        graph (Multigraph): The graph, with :math:`E` triples and :math:`N` vertices.
        sheaf (RelationSheaf): The sheaf.
        width (int): Dimension :math:`d` of the vertex stalks.

    Returns:
        Tensor: ``[E k, N d]`` and ``[E k]``.
    """
    head, tail = graph.edge_index.tolist()
    d, k = width, sheaf.restriction_map(0, "head", width).shape[0]
    dtype = graph.dtype(sheaf)
    delta = torch.zeros(len(head) * k, graph.num_nodes * d, dtype=dtype)
    b = torch.zeros(len(head), k, dtype=dtype)
    for e, r in enumerate(graph.edge_type.tolist()):
        root = graph.edge_weight[e].sqrt()
        rows = slice(e * k, e * k + k)
        ends: tuple[tuple[int, Side, int], ...] = ((tail[e], "tail", 1), (head[e], "head", -1))
        for vertex, side, sign in ends:
            columns = slice(vertex * d, vertex * d + d)
            delta[rows, columns] += sign * root * sheaf.restriction_map(r, side, width).to(dtype)
        translation = sheaf.translation_of(graph.edge_type[e : e + 1])
        if translation is not None:
            b[e] = root * translation[0]
    return delta, b.flatten()


def dense_laplacian(graph: Multigraph, sheaf: RelationSheaf, width: int) -> Tensor:
    r"""The free block :math:`L_{UU}` of :math:`\delta^* W \delta`, ``[n d, n d]``.

    ``graph``, ``sheaf`` and ``width`` are those of :func:`dense_coboundary`.
    """
    delta, _ = dense_coboundary(graph, sheaf, width)
    free = graph.free_coordinates(width)
    return (delta.mH @ delta)[free][:, free]


def dense_metric(
    graph: Multigraph, sheaf: RelationSheaf, width: int, normalization: str | None
) -> Tensor:
    r"""The matrix :math:`M` of a ``normalization`` on the free vertices, ``[n d, n d]``.

    ``graph``, ``sheaf`` and ``width`` are those of :func:`dense_coboundary`.
    """
    laplacian = dense_laplacian(graph, sheaf, width)
    eye = torch.eye(width, dtype=laplacian.dtype)
    free = (~graph.boundary_mask).nonzero().flatten().tolist()
    if normalization is None:
        return torch.block_diag(*[eye for _ in free])
    if normalization == "block":
        parts = [slice(i * width, i * width + width) for i in range(len(free))]
        return torch.block_diag(*[laplacian[part, part] for part in parts])
    degree = torch.zeros(graph.num_nodes, dtype=torch.float64)
    for (head, tail), r, weight in zip(
        graph.edge_index.T.tolist(), graph.edge_type.tolist(), graph.edge_weight, strict=True
    ):
        ends: tuple[tuple[int, Side], ...] = ((head, "head"), (tail, "tail"))
        for vertex, side in ends:
            norm = torch.linalg.matrix_norm(sheaf.restriction_map(r, side, width), 2)
            degree[vertex] += weight * norm**2
    return torch.block_diag(*[float(degree[v]) * eye for v in free])
