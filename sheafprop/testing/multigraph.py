from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sheafprop.sheaf.plan import Normalization, PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf


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
