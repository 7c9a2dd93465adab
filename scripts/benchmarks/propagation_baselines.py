"""What a propagation step is measured against: the ways one would write it without a plan."""

from typing import Optional

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from benchmarks.benchmark_graphs import BenchmarkGraph


class TwoPropagates(MessagePassing):
    r"""The sum of messages by two ``propagate`` calls with PyG's default scatter.

    One call carries the messages into the tails, :math:`c_r \odot x_h` or :math:`C_r x_h`, the
    other those into the heads, with the conjugate coefficients. Coefficients are prepared, and
    whatever does not change from step to step is left out: this is the best case.

    Args:
        coefficients (Tensor, optional): None for identity maps, ``[R, d]`` for diagonal and
            ``[R, d, d]`` (:math:`R_t^* R_h`) for dense ones.
    """

    def __init__(self, coefficients: Tensor | None = None):
        super().__init__(aggr="add")
        self.into_tail = coefficients
        self.into_head = None
        if coefficients is not None:
            adjoint = coefficients.conj().resolve_conj()
            self.into_head = adjoint.mT.contiguous() if coefficients.dim() == 3 else adjoint

    def forward(self, x: Tensor, graph: BenchmarkGraph) -> Tensor:
        given = dict(x=x, edge_type=graph.edge_type, size=(graph.num_nodes, graph.num_nodes))
        into_tail = self.propagate(graph.edge_index, table=self.into_tail, **given)
        return into_tail + self.propagate(graph.edge_index.flip(0), table=self.into_head, **given)

    def message(
        self,
        x_j: Tensor,
        edge_type: Tensor,
        table: Optional[Tensor],  # noqa: UP045 (PyG's inspector reads it)
    ) -> Tensor:
        if table is None:
            return x_j
        if table.dim() == 2:
            return x_j * table[edge_type]
        return (table[edge_type] @ x_j.unsqueeze(-1)).squeeze(-1)


def lean_messages(x: Tensor, graph: BenchmarkGraph, coefficients: Tensor | None = None) -> Tensor:
    """The same sum with two calls of ``index_add_``, for identity and diagonal maps."""
    head, tail = graph.edge_index
    into_tail, into_head = x[head], x[tail]
    if coefficients is not None:
        into_tail = into_tail.mul_(coefficients[graph.edge_type])
        into_head = into_head.mul_(coefficients.conj()[graph.edge_type])
    return torch.zeros_like(x).index_add_(0, tail, into_tail).index_add_(0, head, into_head)


def in_chunks(layer: TwoPropagates, x: Tensor, graph: BenchmarkGraph, size: int) -> Tensor:
    """Two propagates for ``size`` edges at a time, where all at once need too much memory."""
    out = torch.zeros_like(x)
    for start in range(0, graph.edge_type.numel(), size):
        part = BenchmarkGraph(
            graph.name,
            graph.edge_index[:, start : start + size],
            graph.edge_type[start : start + size],
            graph.num_nodes,
            graph.num_relations,
        )
        out += layer(x, part)
    return out
