"""Proximity of nodes in a graph without regard to relations: personalized PageRank."""

import torch
from torch import Tensor
from torch_geometric.utils import remove_self_loops, scatter

from sheafprop.checks import check_integer
from sheafprop.nn.harmonic_extension import HarmonicExtension
from sheafprop.nn.sheaf_propagation import SheafPropagation
from sheafprop.sheaf.identity_sheaf import IdentitySheaf
from sheafprop.sheaf.plan import PropagationPlan

# Numbers of one propagation: so many sources are propagated together that it stays below. On the
# CPU fewer are faster: their columns stay in the cache.
_BLOCK, _SOURCES = 2**24, 64


class Proximity:
    r"""Personalized PageRank of an undirected graph, computed by diffusion on its constant sheaf.

    The walk from a source :math:`e` returns to it with probability :math:`\alpha` before every
    step, and its distribution :math:`\pi_e` satisfies, in the limit,

    .. math::
        \pi_e = \alpha \, \delta_e + (1 - \alpha) \, \pi_e P, \qquad P = D^{-1} A

    with :math:`A` the sum of edge weights in both directions, without self-loops, and :math:`D` its
    row sums. On the constant sheaf, :class:`SheafPropagation` with step size 1 and teleport
    :math:`\alpha / (1 - \alpha)` maps the indicator of :math:`e` to :math:`x_v`, the probability
    that a walk from :math:`v` is at :math:`e`. The walk is reversible, so
    :math:`\pi_e(v) = x_v D_v / D_e`. For an isolated node, :math:`\pi_e` is one at the node itself.

    References: Jeh and Widom, "Scaling Personalized Web Search"; for feature propagation, Gasteiger
        et al., "Predict then Propagate: Graph Neural Networks meet Personalized PageRank".

    Args:
        edge_index (Tensor): Edges ``[2, E]``; their direction is ignored.
        num_nodes (int): Number of nodes :math:`N`.
        edge_weight (Tensor, optional): Weights of the edges, ``[E]``. (default: all one)
        teleport (float): :math:`\alpha`, the probability to return, between 0 and 1.
            (default: ``0.15``)
        num_iterations (int, optional): Steps :math:`k` of the walk: its distribution after
            :math:`k` steps from :math:`\delta_e`. None computes the limit. (default: ``20``)

    Raises:
        ValueError: If an argument is out of its range or the graph is invalid.

    Example:
        >>> near = Proximity(torch.tensor([[0, 1], [1, 2]]), num_nodes=4)
        >>> row = near(torch.tensor([0]))[0]
        >>> bool(row[0] > row[2] > row[3])
        True
        >>> round(float(row.sum()), 3)
        1.0
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        *,
        edge_weight: Tensor | None = None,
        teleport: float = 0.15,
        num_iterations: int | None = 20,
    ):
        pull = pull_of(teleport)
        if num_iterations is not None:
            check_integer("num_iterations", num_iterations, 0)
        edge_index, edge_weight = remove_self_loops(edge_index, edge_weight)
        self.num_nodes, self.num_iterations = num_nodes, num_iterations
        self._layer: SheafPropagation | HarmonicExtension
        if num_iterations is None:
            self._layer = HarmonicExtension(teleport=pull, solver="direct")
        else:
            self._layer = SheafPropagation(num_iterations, step_size=1.0, teleport=pull)
        edge_type = edge_index.new_zeros(edge_index.shape[1])
        self._graph = edge_index, edge_type, IdentitySheaf(relations=1)
        self._plan = PropagationPlan(*self._graph, num_nodes, edge_weight=edge_weight)
        weight = torch.ones_like(edge_type) if edge_weight is None else edge_weight
        self._degree = scatter(
            torch.cat([weight, weight]).to(self._plan.dtype), edge_index.flatten(), 0, num_nodes
        )

    @torch.no_grad()
    def __call__(self, sources: Tensor) -> Tensor:
        r"""Returns :math:`\pi_e(v)` of some sources, of shape ``[n, N]``.

        Args:
            sources (Tensor): Nodes :math:`e`, int64 ``[n]``.
        """
        if sources.numel() == 0:
            return self._degree.new_zeros(0, self.num_nodes)
        size = max(1, _BLOCK // max(1, self.num_nodes))
        if sources.device.type == "cpu":
            size = min(size, _SOURCES)
        return torch.cat([self._block(part) for part in sources.split(size)])

    def _block(self, sources: Tensor) -> Tensor:
        x = self._degree.new_zeros(self.num_nodes, len(sources))
        x[sources, torch.arange(len(sources), device=x.device)] = 1
        x = self._layer(x, *self._graph, plan=self._plan).T
        # Without edges, a row is the node's indicator already.
        degree = self._degree[sources].unsqueeze(1)
        return torch.where(degree > 0, x * self._degree / torch.where(degree > 0, degree, 1), x)


def pull_of(teleport: float) -> float:
    """Returns the teleport of :class:`SheafPropagation` whose walk returns with this probability.

    Raises:
        ValueError: If ``teleport`` is not between 0 and 1.
    """
    if not 0 < teleport < 1:
        raise ValueError(f"'teleport' must lie between 0 and 1 (got {teleport})")
    return teleport / (1 - teleport)


def proximity(
    edge_index: Tensor,
    num_nodes: int,
    sources: Tensor | None = None,
    *,
    edge_weight: Tensor | None = None,
    teleport: float = 0.15,
    num_iterations: int | None = 20,
) -> Tensor:
    r"""Returns the rows of :class:`Proximity` for some sources, ``[n, N]``. (default: all nodes)"""
    near = Proximity(
        edge_index,
        num_nodes,
        edge_weight=edge_weight,
        teleport=teleport,
        num_iterations=num_iterations,
    )
    return near(torch.arange(num_nodes, device=edge_index.device) if sources is None else sources)
