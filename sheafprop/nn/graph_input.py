"""The graph of a call of a layer, and the graph formats of PyTorch Geometric."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

from sheafprop.sheaf.relation_sheaf import RelationSheaf

_SPARSE_LAYOUTS = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)


class GraphInput(NamedTuple):
    """The graph of one call of a layer, in plain tensors.

    Args:
        edge_index (Tensor): Heads and tails of the triples, ``[2, E]``.
        edge_type (Tensor): Relation ids, ``[E]``.
        sheaf (RelationSheaf): Restriction maps and translations.
        edge_weight (Tensor, optional): Weights ``[E]``.
        boundary_mask (Tensor, optional): Known and fixed nodes, bool ``[N]``.
    """

    edge_index: Tensor
    edge_type: Tensor
    sheaf: RelationSheaf
    edge_weight: Tensor | None = None
    boundary_mask: Tensor | None = None


def as_edges(
    edge_index: Tensor | SparseTensor, edge_type: Tensor | None, x: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Plain ``edge_index [2, E]`` and ``edge_type [E]``.

    A :class:`torch_sparse.SparseTensor` is read as PyG passes it: the *transposed* adjacency matrix
    ``adj_t`` with the relation ids as its values. It keeps parallel entries separate; native
    ``torch.sparse`` tensors sum them and raise an error. The order of the edges does not change
    (also for :class:`torch_geometric.EdgeIndex`), so ``edge_type`` and ``edge_weight`` refer to its
    columns.

    Raises:
        ValueError: On a native sparse layout, on relation ids given twice or not at all, on an
            adjacency matrix of more vertices than ``x`` has rows.
    """
    if isinstance(edge_index, SparseTensor):
        size = max(edge_index.sparse_sizes())
        if x is not None and x.dim() > 1 and size > x.shape[-2]:
            raise ValueError(f"'x' has {x.shape[-2]} rows, but 'adj_t' is for {size} vertices")
        row, col, value = edge_index.coo()
        if (value is None) == (edge_type is None):
            raise ValueError(
                "a SparseTensor needs the relation ids either as its values or as 'edge_type' in "
                f"the order of its entries (got {'neither' if value is None else 'both'})"
            )
        ids = edge_type if value is None else value
        assert ids is not None
        if ids.is_floating_point():
            raise ValueError(f"relation ids must be integers (got {ids.dtype})")
        return torch.stack([col, row]), ids
    if not isinstance(edge_index, Tensor):
        raise ValueError(
            "'edge_index' must be a tensor, an EdgeIndex or a SparseTensor "
            f"(got {type(edge_index).__name__})"
        )
    if edge_index.layout in _SPARSE_LAYOUTS:
        raise ValueError(
            f"native sparse tensors ({edge_index.layout}) merge parallel triples and add their "
            "relation ids: pass 'edge_index' [2, E] and 'edge_type' [E] instead"
        )
    if edge_type is None:
        raise ValueError("'edge_type' is missing: one relation id for each edge is needed")
    if isinstance(edge_index, EdgeIndex):
        edge_index = edge_index.as_tensor()
    return edge_index, edge_type
