from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sheafprop.sheaf.plan import Normalization, PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf, Side


@dataclass(frozen=True, eq=False)
class Multigraph:
    r"""A small relation-typed multigraph with weights and a boundary, in double precision.

    Args:
        edge_index (Tensor): Heads and tails, int64 ``[2, E]``.
        edge_type (Tensor): Relation ids, int64 ``[E]``.
        edge_weight (Tensor): Weights, float64 ``[E]``.
        boundary_mask (Tensor): Known vertices, bool ``[N]``.
    """

    edge_index: Tensor
    edge_type: Tensor
    edge_weight: Tensor
    boundary_mask: Tensor

    @classmethod
    def random(
        cls,
        num_relations: int,
        *,
        num_nodes: int = 12,
        num_edges: int = 30,
        boundary: float = 0.3,
        seed: int = 0,
    ) -> "Multigraph":
        """A random graph with all that is awkward: a triple of another relation beside the first,
        a repeated triple, a reversed one, two self-loops, a weight of zero and, last, an isolated
        free vertex.

        Args:
            num_relations (int): Number of relations.
            num_nodes (int): Number of vertices.
            num_edges (int): Number of triples, at least 7.
            boundary (float): Share of the vertices that are known, about.
            seed (int): The seed.
        """
        g = torch.Generator().manual_seed(seed)
        edge_index = torch.randint(0, num_nodes - 1, (2, num_edges), generator=g)
        edge_type = torch.randint(0, num_relations, (num_edges,), generator=g)
        edge_index[:, 1] = edge_index[:, 2] = edge_index[:, 0]
        edge_type[1], edge_type[2] = (edge_type[0] + 1) % num_relations, edge_type[0]
        edge_index[:, 3] = edge_index[:, 0].flip(0)
        edge_index[1, 4:6] = edge_index[0, 4:6]
        weight = torch.rand(num_edges, generator=g, dtype=torch.float64) + 0.1
        weight[6] = 0
        mask = torch.rand(num_nodes, generator=g) < boundary
        mask[-1] = False
        return cls(edge_index, edge_type, weight, mask)

    @property
    def num_nodes(self) -> int:
        """Number of vertices."""
        return self.boundary_mask.numel()

    @property
    def options(self) -> dict[str, Tensor]:
        """Weights and boundary, as the layers take them."""
        return {"edge_weight": self.edge_weight, "boundary_mask": self.boundary_mask}

    def call(self, layer: Any, x: Tensor, sheaf: RelationSheaf) -> Tensor:
        """A layer's output for features ``x`` ``[N, F]`` under a ``sheaf``."""
        return layer(x, self.edge_index, self.edge_type, sheaf, **self.options)

    def plan(
        self, sheaf: RelationSheaf, *, normalization: Normalization = "block"
    ) -> PropagationPlan:
        """The plan of the graph for a ``sheaf``, with a ``normalization`` of the layers."""
        return PropagationPlan(
            self.edge_index,
            self.edge_type,
            sheaf,
            self.num_nodes,
            normalization=normalization,
            dtype=self.dtype(sheaf),
            **self.options,
        )

    def features(self, sheaf: RelationSheaf, width: int, *, seed: int = 0) -> Tensor:
        """Features ``[N, width]`` of the ``sheaf``'s number field, drawn from a ``seed``."""
        g = torch.Generator().manual_seed(seed)
        return torch.randn(self.num_nodes, width, generator=g, dtype=self.dtype(sheaf))

    def free_coordinates(self, width: int) -> Tensor:
        """Places of the free vertices' coordinates in features ``[N, width]`` written in a row."""
        return (~self.boundary_mask).repeat_interleave(width).nonzero().flatten()

    def permute(self, seed: int = 0) -> tuple["Multigraph", Tensor]:
        """The graph in another order drawn from a ``seed``, and the old number of each vertex."""
        g = torch.Generator().manual_seed(seed)
        node = torch.randperm(self.num_nodes, generator=g)
        edge = torch.randperm(self.edge_type.numel(), generator=g)
        new = Multigraph(
            torch.argsort(node)[self.edge_index[:, edge]],
            self.edge_type[edge],
            self.edge_weight[edge],
            self.boundary_mask[node],
        )
        return new, node

    def with_boundary(self, boundary_mask: Tensor) -> "Multigraph":
        """The same triples with other known vertices."""
        return replace(self, boundary_mask=boundary_mask)

    @staticmethod
    def dtype(sheaf: RelationSheaf) -> torch.dtype:
        """Number type of features for a sheaf; real and double where it takes any."""
        return sheaf.dtype or torch.float64


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
