"""Mini-batches that give the vectors of the full graph."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from sheafprop.nn.graph_input import as_edges
from sheafprop.sheaf.graph_checks import check_graph_shapes


def k_hop_batch(
    data: Data,
    seeds: Tensor | list[int],
    num_hops: int | None,
    *,
    boundary_mask: str = "boundary_mask",
) -> Data:
    r"""Returns the subgraph that the vectors of some nodes depend on, as a mini-batch.

    ``k`` steps of a layer on it give the ``seeds`` the vectors of ``k`` steps on the full graph,
    for ``num_hops`` :math:`\ge k`. It is the subgraph *induced* by all nodes within so many hops,
    along edges *both ways*, since both ends of a triple receive a message: a node that steps then
    has all its edges, hence its block of :math:`D`, and those at the last hop only give their
    start. Known nodes never step, so no hop leads on from one. ``NeighborLoader`` follows edges
    from their destination to their source only, and misses the messages along outgoing edges.
    This function and :meth:`~sheafprop.nn.HeteroGraph.from_hetero` warn about its batches; a layer
    that receives their tensors cannot.

    Steps of all layers that the vectors pass through add up; those of
    :class:`~sheafprop.nn.SheafDiffusion` are its operator applications. With ``num_hops`` None the
    batch is closed, and :class:`~sheafprop.nn.HarmonicExtension` agrees too. Three things depend
    on the whole graph and differ: ``tol`` of :class:`~sheafprop.nn.SheafPropagation`, the default
    length of :func:`~sheafprop.nn.rescale_sections`, and starts computed from the batch: compute
    them from the full graph, as rows of ``x``.

    Args:
        data (Data): The full graph: ``edge_index``, ``edge_type``, and further
            attributes of nodes or edges, which are selected likewise.
        seeds (Tensor): Ids of distinct nodes, int64 ``[S]``.
        num_hops (int, optional): Number of hops; None for the whole component.
        boundary_mask (str): Attribute with the known nodes, bool ``[N]``; all are free where it is
            missing.

    Returns:
        Data: The rows of the seeds come first, in the order given. As in PyG's loaders ``n_id``
        holds the ids of its nodes in the full graph, ``e_id`` those of its edges, and
        ``batch_size`` the number of seeds.

    Raises:
        ValueError: If the data, the seeds or the number of hops are not as described.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> edge_index = torch.stack([torch.arange(9), torch.arange(1, 10)])
        >>> edge_type = torch.zeros(9, dtype=torch.long)
        >>> data = Data(x=torch.eye(10), edge_index=edge_index, edge_type=edge_type)
        >>> loader = DataLoader(range(10), 4, collate_fn=lambda seeds: k_hop_batch(data, seeds, 2))
        >>> [(batch.batch_size, batch.num_nodes) for batch in loader]
        [(4, 6), (4, 8), (2, 4)]
    """
    if not isinstance(data, Data):
        raise ValueError(
            f"'data' must be a torch_geometric.data.Data (got {type(data).__name__}); of a "
            "HeteroGraph, Data(x=graph.x, edge_index=graph.edge_index, edge_type=graph.edge_type)"
        )
    warn_sampled(data)
    num_nodes = data.num_nodes
    edge_index, edge_type = as_edges(data.edge_index, data.get("edge_type"))
    known = data.get(boundary_mask)
    check_graph_shapes(edge_index, edge_type, num_nodes, None, known)
    seeds = _check_seeds(seeds, num_nodes).to(edge_index.device)
    if num_hops is not None and (isinstance(num_hops, bool) or num_hops < 0):
        raise ValueError(f"'num_hops' must be None or not negative (got {num_hops})")

    head, tail = edge_index.long()
    reached = torch.zeros(num_nodes, dtype=torch.bool, device=edge_index.device)
    reached[seeds] = True
    front = reached.clone()
    for _ in range(num_nodes if num_hops is None else num_hops):
        if known is not None:
            front &= ~known
        met = torch.zeros_like(reached)
        met[tail[front[head]]] = True
        met[head[front[tail]]] = True
        front = met & ~reached
        if not bool(front.any()):
            break
        reached |= front
    inside = reached[head] & reached[tail]
    reached[seeds] = False
    n_id = torch.cat([seeds, reached.nonzero().flatten()])
    out = data.subgraph(n_id)
    out.n_id, out.e_id = n_id, inside.nonzero().flatten()
    out.num_nodes, out.batch_size = n_id.numel(), seeds.numel()
    return out


def warn_sampled(data: Any) -> None:
    """Warns of a batch of PyG's ``NeighborLoader``, which may lack edges of its nodes.

    Its attributes alone give it away: ``edge_index`` is a tensor like any other, so that a layer
    cannot warn.
    """
    keys = {key for store in data.stores for key in store}
    if keys >= {"n_id", "e_id", "input_id"}:
        warnings.warn(
            "a batch of PyG's neighbor loaders is sampled along edges into its nodes and may miss "
            "those out of them, but both ends of a triple receive a message: its vectors may "
            "differ from those of the full graph. Take k_hop_batch(data, seeds, num_hops)",
            stacklevel=3,
        )


def _check_seeds(seeds: Tensor | list[int], num_nodes: int) -> Tensor:
    seeds = torch.as_tensor(seeds)
    if seeds.numel() == 0:
        return seeds.flatten().long()
    if seeds.dtype == torch.bool or seeds.is_floating_point() or seeds.dim() != 1:
        raise ValueError(
            "'seeds' must be node ids [S], as mask.nonzero().flatten() of a mask "
            f"(got {seeds.dtype} of shape {list(seeds.shape)})"
        )
    ids, counts = torch.unique(seeds.long(), return_counts=True)
    if int(ids[0]) < 0 or int(ids[-1]) >= num_nodes:
        bad = int(ids[0]) if int(ids[0]) < 0 else int(ids[-1])
        raise ValueError(f"'seeds' must hold ids from 0 to {num_nodes - 1} (got {bad})")
    if int(counts.max()) > 1:
        raise ValueError(f"'seeds' must be distinct (got node {int(ids[counts > 1][0])} twice)")
    return seeds.long()
