"""Personalized PageRank whose edges weigh differently for every source."""

import torch
from torch import Tensor

from sheafprop.nn.proximity import pull_of
from sheafprop.nn.sheaf_propagation import SheafPropagation
from sheafprop.sheaf.diagonal_sheaf import DiagonalSheaf
from sheafprop.sheaf.graph_checks import GraphInput, check_graph
from sheafprop.sheaf.identity_sheaf import IdentitySheaf


class RelationProximity:
    r"""Personalized PageRank of an undirected graph whose relations have weights for each source.

    As :class:`~sheafprop.nn.Proximity`, but source :math:`i` has its own weight
    :math:`w_{i, r} > 0` for every relation :math:`r`, so that its walk prefers some relations:

    .. math::
        \pi_i = \alpha \, \delta_{e_i} + (1 - \alpha) \, \pi_i D_i^{-1} A_i, \qquad
        A_i = \sum_r w_{i, r} (B_r + B_r^\top)

    with :math:`B_r` the number of edges of relation :math:`r` between nodes, without self-loops,
    and :math:`D_i` the row sums of :math:`A_i`. This is the diffusion of :math:`\delta_{e_i}` on a
    diagonal sheaf with one column for each source, whose maps at both ends of an edge are
    :math:`\sqrt{w_{i, r}}`: :class:`SheafPropagation` with step size 1 and teleport
    :math:`\alpha / (1 - \alpha)` gives :math:`x`, and
    :math:`\pi_i(v) = x_v D_i(v) / D_i(e_i)`. The result is differentiable in the weights. For an
    isolated node, :math:`\pi_i` is one at the node itself.

    References: Jeh and Widom, "Scaling Personalized Web Search"; Lao and Cohen, "Relational
        Retrieval Using a Combination of Path-Constrained Random Walks", for walks whose preference
        of relations is learned for every query relation.

    Args:
        edge_index (Tensor): Edges ``[2, E]``; their direction is ignored.
        edge_type (Tensor): Relation ids, int64 ``[E]``.
        num_nodes (int): Number of nodes :math:`N`.
        num_relations (int): Number of relations :math:`R`.
        teleport (float): :math:`\alpha`, the probability to return, between 0 and 1.
            (default: ``0.15``)
        num_iterations (int): Steps :math:`k` of the walk. (default: ``20``)

    Raises:
        ValueError: If an argument is out of its range or the graph is invalid.

    Example:
        >>> edge_index, edge_type = torch.tensor([[0, 0], [1, 2]]), torch.tensor([0, 1])
        >>> near = RelationProximity(edge_index, edge_type, num_nodes=3, num_relations=2)
        >>> row = near(torch.tensor([0]), torch.tensor([[4.0, 1.0]]))[0]
        >>> round(float(row[1] / row[2]), 3)
        4.0
    """

    def __init__(
        self,
        edge_index: Tensor,
        edge_type: Tensor,
        num_nodes: int,
        num_relations: int,
        *,
        teleport: float = 0.15,
        num_iterations: int = 20,
    ):
        pull = pull_of(teleport)
        relations = IdentitySheaf(relations=num_relations)
        check_graph(GraphInput(edge_index, edge_type, relations), num_nodes)
        edges = edge_index[0] != edge_index[1]
        self.num_nodes, self.num_relations = num_nodes, num_relations
        self.num_iterations = num_iterations
        self._edge_index, self._edge_type = edge_index[:, edges], edge_type[edges]
        self._layer = SheafPropagation(num_iterations, step_size=1.0, teleport=pull)

    def __call__(self, sources: Tensor, weight: Tensor) -> Tensor:
        r"""Returns :math:`\pi_i(v)`, of shape ``[n, N]``.

        Args:
            sources (Tensor): Nodes :math:`e_i`, int64 ``[n]``; they may repeat.
            weight (Tensor): :math:`w_{i, r}`, ``[n, R]``; a common factor of a row changes
                nothing. Zero removes the edges of a relation, and has no gradient.

        Raises:
            ValueError: If ``weight`` has another shape, or a value that is negative or not finite.
        """
        if weight.shape != (len(sources), self.num_relations):
            raise ValueError(
                f"'weight' must have shape {[len(sources), self.num_relations]}, a row for each "
                f"source and a column for each relation (got {list(weight.shape)})"
            )
        bad = ~(torch.isfinite(weight) & (weight >= 0))
        if bool(bad.any()):
            row, column = bad.nonzero()[0].tolist()
            raise ValueError(
                f"'weight' must be finite and not negative (got {weight[row, column].item()} at "
                f"source {row}, relation {column})"
            )
        columns = torch.arange(len(sources), device=sources.device)
        x = weight.new_zeros(self.num_nodes, len(sources))
        x[sources, columns] = 1
        root = weight.sqrt().T.contiguous()
        graph = self._edge_index, self._edge_type, DiagonalSheaf(root, root)
        plan = self._layer.plan(x, *graph)
        x = self._layer(x, *graph, plan=plan)
        degree = plan.apply_metric(torch.ones_like(x, dtype=plan.dtype).unsqueeze(1)).squeeze(1)
        own = degree[sources, columns]
        # Without edges, a column is the node's indicator already.
        return torch.where(own > 0, x * degree / torch.where(own > 0, own, 1), x).T
