"""The graph of a call, and its checks against a sheaf and features before any kernel runs."""

from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.kernels.backend import all_finite, is_traced
from sheafprop.sheaf.relation_sheaf import RelationSheaf

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


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


def check_graph(graph: GraphInput, num_nodes: int) -> None:
    """Refuses a graph or a sheaf that the operators would misread.

    Raises:
        ValueError: On a wrong shape or dtype, ids out of range, a weight that is negative or not
            finite, a mask of the wrong length, or maps that are not finite; the message names what
            was expected and what came.
    """
    edge_index, edge_type, sheaf, edge_weight, boundary_mask = graph
    check_graph_shapes(edge_index, edge_type, num_nodes, edge_weight, boundary_mask)
    _check_range("edge_index", edge_index, num_nodes, "num_nodes")
    _check_range("edge_type", edge_type, sheaf.num_relations, "num_relations")
    if edge_weight is not None:
        bad = ~(torch.isfinite(edge_weight) & (edge_weight >= 0))
        if bool(bad.any()):
            index = int(bad.nonzero()[0])
            raise ValueError(
                "'edge_weight' must be finite and not negative "
                f"(got {float(edge_weight[index])} at edge {index})"
            )
    check_finite_sheaf(sheaf)


def check_graph_shapes(
    edge_index: Tensor,
    edge_type: Tensor,
    num_nodes: int,
    edge_weight: Tensor | None = None,
    boundary_mask: Tensor | None = None,
) -> None:
    """The part of :func:`check_graph` that reads no values, and so can be traced."""
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        hint = " (transpose it)" if edge_index.dim() == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(
            f"'edge_index' must have shape [2, num_edges] (got {list(edge_index.shape)}){hint}"
        )
    num_edges = edge_index.shape[1]
    for name, ids in (("edge_index", edge_index), ("edge_type", edge_type)):
        if ids.dtype not in _INTEGERS:
            raise ValueError(f"'{name}' must hold integers (got {ids.dtype})")
    if edge_type.shape != (num_edges,):
        raise ValueError(
            f"'edge_type' must have one relation id for each of the {num_edges} edges "
            f"(got shape {list(edge_type.shape)})"
        )
    if edge_weight is not None:
        if edge_weight.shape != (num_edges,):
            raise ValueError(
                f"'edge_weight' must have one weight for each of the {num_edges} edges "
                f"(got shape {list(edge_weight.shape)})"
            )
        if edge_weight.is_complex() or not edge_weight.is_floating_point():
            raise ValueError(f"'edge_weight' must be real floating point (got {edge_weight.dtype})")
        if edge_weight.requires_grad:
            raise ValueError(
                "gradients with respect to 'edge_weight' are not offered: pass it detached; "
                "sheaf.scale_energy(weight) has gradients to one weight for each relation"
            )
    if boundary_mask is not None:
        if boundary_mask.dtype != torch.bool:
            raise ValueError(f"'boundary_mask' must be a bool mask (got {boundary_mask.dtype})")
        if boundary_mask.shape != (num_nodes,):
            raise ValueError(
                f"'boundary_mask' must have one entry for each of the {num_nodes} nodes "
                f"(got shape {list(boundary_mask.shape)})"
            )


def check_places(x: Tensor, graph: GraphInput) -> None:
    """Refuses what is not a tensor, and tensors that are not where the features are.

    Raises:
        ValueError: The message names the first such argument.
    """
    given = graph._asdict()
    sheaf = given.pop("sheaf")
    for name, value in given.items():
        if value is not None:
            _check_tensor(name, value)
    given |= {f"sheaf.{name}": tensor for name, tensor in sheaf.tensors().items()}
    for name, value in given.items():
        if value is not None and value.device != x.device:
            raise ValueError(
                f"'{name}' must be on the device of 'x', {x.device} (got {value.device})"
            )


def check_features(x: Tensor, sheaf: RelationSheaf) -> None:
    """Refuses features that the sheaf's maps cannot act on.

    Raises:
        ValueError: If an argument is not a tensor or a sheaf, tensors without values, integer
            features, the wrong width, or real features under complex maps.
    """
    _check_tensor("x", x)
    if not isinstance(sheaf, RelationSheaf):
        hint = ", or call it, as sheaf()" if isinstance(sheaf, torch.nn.Module) else ""
        raise ValueError(
            f"'sheaf' must be a RelationSheaf, such as IdentitySheaf(translation){hint} "
            f"(got {type(sheaf).__name__})"
        )
    if x.device.type == "meta" and not is_traced(x):
        raise ValueError("'x' is on the device 'meta', whose tensors hold no values to propagate")
    if not (x.is_floating_point() or x.is_complex()):
        raise ValueError(f"'x' must be floating point or complex (got {x.dtype})")
    if x.dim() not in (2, 3):
        raise ValueError(f"'x' must be [N, F] or [B, N, F] (got shape {list(x.shape)})")
    if sheaf.stalk_dim is not None and x.shape[-1] != sheaf.stalk_dim:
        raise ValueError(
            f"'x' must have the width of the sheaf's stalks, {sheaf.stalk_dim} (got {x.shape[-1]})"
        )
    if sheaf.dtype is not None and sheaf.dtype.is_complex and not x.is_complex():
        raise ValueError(
            f"the sheaf's maps are complex ({sheaf.dtype}), so 'x' must be complex too (got "
            f"{x.dtype}): torch.view_as_complex(x.unflatten(-1, (-1, 2))) converts it"
        )


def check_finite_features(x: Tensor) -> None:
    """Refuses features ``x`` ``[..., N, F]`` that are not finite, by the row; skipped where traced.

    Raises:
        ValueError: The message names the first such row.
    """
    if all_finite(x):
        return
    bad = ~torch.isfinite(x.detach()).all(dim=-1)
    bad = bad.flatten(0, -2).any(dim=0) if bad.dim() > 1 else bad
    raise ValueError(
        f"'x' must be finite (got NaN or infinity in row {int(bad.nonzero()[0])}); give unknown "
        "rows a start, such as zeros"
    )


def check_finite_sheaf(sheaf: RelationSheaf) -> None:
    """Refuses maps and translations that are not finite, by relation; skipped where traced.

    Raises:
        ValueError: The message names the first such relation and the tensor.
    """
    for name, tensor in sheaf.tensors().items():
        if not all_finite(tensor):
            relation = int((~torch.isfinite(tensor)).nonzero()[0, 0])
            raise ValueError(
                f"'{name}' must be finite (got NaN or infinity at relation {relation})"
            )


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"'{name}' must be a tensor (got {type(value).__name__})")


def _check_range(name: str, ids: Tensor, size: int, bound: str) -> None:
    if ids.numel() == 0:
        return
    low, high = map(int, torch.aminmax(ids))
    if low < 0 or high >= size:
        raise ValueError(
            f"'{name}' must hold ids from 0 to {bound} - 1 = {size - 1} "
            f"(got {low if low < 0 else high})"
        )
