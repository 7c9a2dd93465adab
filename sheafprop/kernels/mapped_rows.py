"""Rows under the maps of their relations, and sums of products that belong to one relation."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.backend import as_arrays, backend_of, stable_order
from sheafprop.kernels.memory import empty
from sheafprop.kernels.rows import full_precision
from sheafprop.kernels.threads import run_chunks, run_rows

# Up to this size of a map, and of all rows' maps together, a compiled loop over the rows is faster
# than a matrix product for each relation.
_SMALL_MAP, _SMALL_MAPS = 2**10, 2**22
# Parts that the products of all relations are shared in.
_PARTS = 32


def mapped_rows(rows: Tensor, maps: Tensor, rel_type: Tensor) -> Tensor:
    r"""Each row under the map of its own relation.

    .. math::
        \mathbf{y}_i = \mathbf{M}_{r_i} \mathbf{x}_i

    No map is copied. The gradient of one that no row uses is zero.

    Args:
        rows (Tensor): The real rows :math:`\mathbf{x}`.
        maps (Tensor): The maps :math:`\mathbf{M}` of all relations.
        rel_type (Tensor): The relation :math:`r` of each row.

    Shapes:
        - **rows:** :math:`(B, s, d)`, **maps:** :math:`(R, k, d)`, **rel_type:** :math:`(B)`
        - **output:** :math:`(B, s, k)`

    Raises:
        IndexError: If a relation is not one of the maps.
    """
    if rel_type.numel():
        low, high = (int(end) for end in rel_type.aminmax())
        if low < 0 or high >= len(maps):
            raise IndexError(
                f"'rel_type' needs numbers from 0 to {len(maps) - 1} (got {low} to {high})"
            )
    return _MappedRows.apply(rows, maps, rel_type)


def groups(rel_type: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """An order that brings equal relations together, the relations, and how many of each."""
    ordered, order = rel_type.sort(stable=True)
    relations, counts = ordered.unique_consecutive(return_counts=True)
    return order, relations, counts.tolist()


class _MappedRows(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, maps: Tensor, rel_type: Tensor) -> Tensor:
        size, width = rows.size(1), maps.size(1)
        if _is_small(rows, maps.shape, rel_type):
            from sheafprop.kernels.distance_loops import map_rows

            out = rows.new_empty(*rows.shape[:2], width)
            table = maps.transpose(1, 2)
            arguments = as_arrays(table, rel_type, rows.flatten(0, 1), out.view(-1, width))
            run_rows(map_rows, arguments, np.arange(out[..., 0].numel() + 1), maps[0].numel())
            return out
        order, relations, counts = groups(rel_type)
        ordered = rows.new_empty(*rows.shape[:2], width)
        blocks = _blocks(counts, size, rows.index_select(0, order), ordered)

        def multiply(relation: int, block: Tensor, target: Tensor) -> None:
            torch.mm(block, maps[relation].t(), out=target)

        cost = ordered.numel() * rows.size(-1)
        _run_each(multiply, list(zip(relations.tolist(), *blocks, strict=True)), rows, cost)
        return torch.empty_like(ordered).index_copy_(0, order, ordered)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        rows, maps, rel_type = ctx.saved_tensors
        need_rows, need_maps, _ = ctx.needs_input_grad
        with full_precision(grad):
            return (
                _MappedRows.apply(grad, maps.transpose(1, 2), rel_type) if need_rows else None,
                _SumOfProducts.apply(grad, rows, rel_type, maps.size(0)) if need_maps else None,
                None,
            )


class _SumOfProducts(torch.autograd.Function):
    r"""The sum of :math:`\mathbf{g}_i \mathbf{x}_i^\top` over the rows of each relation."""

    @staticmethod
    def forward(left: Tensor, right: Tensor, rel_type: Tensor, num_relations: int) -> Tensor:
        out = empty((num_relations, left.size(2), right.size(2)), left)
        size = left.size(1)
        if _is_small(left, out.shape, rel_type):
            from sheafprop.kernels.distance_loops import sums_of_products

            start, order = stable_order(rel_type, num_relations)
            arguments = as_arrays(start, order, left.flatten(0, 1), right.flatten(0, 1), out)
            run_rows(sums_of_products, (size, *arguments), start.numpy(), size * out[0].numel())
            return out
        order, relations, counts = groups(rel_type)
        unused = torch.ones(num_relations, dtype=torch.bool, device=left.device)
        unused[relations] = False
        out.index_fill_(0, unused.nonzero().squeeze(1), 0.0)
        blocks = _blocks(counts, size, left.index_select(0, order), right.index_select(0, order))

        def multiply(relation: int, a: Tensor, b: Tensor) -> None:
            torch.mm(a.t(), b, out=out[relation])

        cost = left.numel() * right.size(-1)
        _run_each(multiply, list(zip(relations.tolist(), *blocks, strict=True)), left, cost)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        left, right, rel_type = ctx.saved_tensors
        with full_precision(grad):
            return (
                _MappedRows.apply(right, grad, rel_type),
                _MappedRows.apply(left, grad.transpose(1, 2), rel_type),
                None,
                None,
            )


def _is_small(rows: Tensor, shape: torch.Size, rel_type: Tensor) -> bool:
    numel = shape[1] * shape[2]
    few = numel <= _SMALL_MAP and rel_type.numel() * numel <= _SMALL_MAPS
    return few and backend_of(rows) == "numba"


def _blocks(counts: list[int], size: int, *tables: Tensor) -> list[tuple[Tensor, ...]]:
    """The rows of each group, of tables with `size` rows for each row that is counted."""
    return [table.view(-1, table.size(-1)).split([size * n for n in counts]) for table in tables]


def _run_each(
    multiply: Callable[..., None], products: Sequence[tuple], rows: Tensor, cost: int
) -> None:
    """Computes products in groups of consecutive ones, each group on one thread."""

    def run(some: Sequence[tuple]) -> None:
        for product in some:
            multiply(*product)

    step = max(1, len(products) // _PARTS)
    parts = [products[i : i + step] for i in range(0, len(products), step)]
    run_chunks(run, parts, cost if rows.device.type == "cpu" else 0)
