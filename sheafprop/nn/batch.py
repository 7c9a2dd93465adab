"""Vectors of a batch of graphs, given back graph by graph."""

from torch import Tensor
from torch_geometric.data import Batch, HeteroData

from sheafprop.nn.hetero_graph import HeteroGraph, split_rows


def unbatch(out: Tensor, batch: Batch) -> list[Tensor]:
    r"""The rows of each graph of a :class:`~torch_geometric.data.Batch`, in their original order.

    A batch is one graph to the layers: pass them its ``edge_index``, ``edge_type`` and
    ``boundary_mask``.

    Args:
        out (Tensor): What a layer returned, ``[N, F]`` or ``[B, N, F]``.
        batch (Batch): The batch it was computed on.

    Raises:
        ValueError: If the rows are not those of the batch, or its graphs are heterogeneous.
    """
    _check_batch(batch)
    if issubclass(type(batch), HeteroData):
        raise ValueError("a batch of heterogeneous graphs needs 'unbatch_hetero'")
    return list(split_rows(out, batch.ptr.diff().tolist()))


def unbatch_hetero(out: Tensor, graph: HeteroGraph, batch: Batch) -> list[dict[str, Tensor]]:
    r"""The rows of each node type of each graph, for a batch of heterogeneous graphs.

    Args:
        out (Tensor): What a layer returned, ``[N, F]`` or ``[B, N, F]``.
        graph (HeteroGraph): What :meth:`HeteroGraph.from_hetero` made of the batch.
        batch (Batch): The batch of heterogeneous graphs.
    """
    _check_batch(batch)
    graphs: list[dict[str, Tensor]] = [{} for _ in range(batch.num_graphs)]
    for kind, rows in graph.split(out).items():
        parts = split_rows(rows, batch[kind].ptr.diff().tolist())
        for target, part in zip(graphs, parts, strict=True):
            target[kind] = part
    return graphs


def _check_batch(batch: Batch) -> None:
    if not isinstance(batch, Batch):
        raise ValueError(
            f"'batch' must come from Batch.from_data_list (got {type(batch).__name__}, one graph)"
        )
