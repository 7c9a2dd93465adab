"""What a layer is called with: the graph, in a format of PyTorch Geometric, and features."""

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import all_finite, outside_inference
from sheafprop.nn.trainable_sheaf import warn_unregistered
from sheafprop.sheaf.graph_checks import check_features, check_finite_features
from sheafprop.sheaf.plan import PropagationPlan, working_dtype
from sheafprop.sheaf.relation_sheaf import RelationSheaf

_SPARSE_LAYOUTS = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)


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


_HALF = (torch.float16, torch.bfloat16, torch.complex32)


def to_sections(x: Tensor) -> Tensor:
    """Brings ``[N, F]`` or ``[B, N, F]`` to the operators' ``[N, s, F]``."""
    return x.unsqueeze(1) if x.dim() == 2 else x.transpose(0, 1)


def from_sections(sections: Tensor, like: Tensor) -> Tensor:
    """Brings sections back to the shape that :func:`to_sections` was given."""
    return sections.squeeze(1) if like.dim() == 2 else sections.transpose(0, 1)


def with_free(sections: Tensor, plan: PropagationPlan, free: Tensor) -> Tensor:
    """All vertices, with new values at the free ones and the boundary untouched."""
    if plan.num_free == plan.num_nodes:
        return free
    return sections.index_copy(0, plan.free_index, free)


def prepare_features(x: Tensor, sheaf: RelationSheaf) -> Tensor:
    """Checks features and brings them to the number type that the layers compute in."""
    check_features(x, sheaf)
    warn_unregistered(sheaf)
    if torch.is_grad_enabled():
        x = outside_inference(x)
    return x.to(working_dtype(x.dtype, sheaf))


def round_result(out: Tensor, x: Tensor) -> Tensor:
    """Rounds a result to half precision where the features ``x`` are.

    Raises:
        DivergenceError: If it is too large for that type.
    """
    if x.dtype not in _HALF:
        return out
    rounded = out.to(x.dtype)
    if not all_finite(torch.view_as_real(rounded) if rounded.is_complex() else rounded):
        raise DivergenceError(
            f"the values became too large for {x.dtype}: scale the features down, or take bfloat16 "
            "or single precision"
        )
    return rounded


def check_result(out: Tensor, x: Tensor) -> None:
    """Refuses a result that is not finite, and says whether the features were to blame."""
    if not all_finite(out):
        check_finite_features(x)
        raise DivergenceError(
            f"the values became too large for {out.dtype}: scale the features or maps down, or "
            "take double precision"
        )
