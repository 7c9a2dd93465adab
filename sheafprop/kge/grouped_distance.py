"""Distances of the queries of each relation to candidates under the map of that relation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kernels.rows import full_precision
from sheafprop.kernels.threads import run_chunks, run_shares

_Function = Callable[[Tensor, Tensor], Tensor]

# Fewer numbers than this in the candidates of a relation are mapped on one thread.
_FEW_NUMBERS = 2**22


def grouped_distance(
    distance: _Function,
    mapping: _Function,
    groups: tuple[Tensor, ...],
    queries: Tensor,
    rows: Tensor,
    maps: Tensor,
) -> Tensor:
    """Distances ``[B, C]`` of queries to all candidates, mapped for one relation at a time.

    Mapped candidates live for one relation at a time (where they are few, for one on each thread);
    the backward pass maps them again. No tensor of queries x candidates x width is formed.

    Args:
        distance (callable): Of queries ``[b, s, m]`` and mapped candidates ``[C, s, m]``.
        mapping (callable): Applies a map, a row of ``maps``, to all candidates.
        groups (tuple of Tensor): The queries of each relation.
        queries (Tensor): ``[B, s, m]``.
        rows (Tensor): Candidates, ``[C, s, d]``.
        maps (Tensor): The map of each group, ``[G, ...]``.
    """
    return _GroupedDistance.apply(distance, mapping, groups, queries, rows, maps)


class _GroupedDistance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        distance: _Function,
        mapping: _Function,
        groups: tuple[Tensor, ...],
        queries: Tensor,
        rows: Tensor,
        maps: Tensor,
    ) -> Tensor:
        out = queries.new_empty(queries.size(0), rows.size(0))

        def measure(group: tuple[Tensor, Tensor]) -> None:
            index, weight = group
            out[index] = distance(queries[index], mapping(rows, weight))

        # Large products share their work themselves, and need the memory of one relation.
        small = rows.device.type == "cpu" and rows.numel() < _FEW_NUMBERS
        run_chunks(measure, list(zip(groups, maps, strict=True)), None if small else 0)
        ctx.distance, ctx.mapping, ctx.groups = distance, mapping, groups
        ctx.save_for_backward(queries, rows, maps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, rows, maps = ctx.saved_tensors
        need_rows = ctx.needs_input_grad[4]
        grad_queries, grad_maps = torch.empty_like(queries), torch.empty_like(maps)
        grad_rows = torch.zeros_like(rows) if need_rows else rows.new_zeros(0)
        rows = rows.detach().requires_grad_(need_rows)

        def add(first: int, last: int, grad_rows: Tensor) -> None:
            for i in range(first, last):
                index = ctx.groups[i]
                query, weight = queries[index].requires_grad_(), maps[i].clone().requires_grad_()
                with torch.enable_grad():
                    out = ctx.distance(query, ctx.mapping(rows, weight))
                wanted = (query, weight, rows) if need_rows else (query, weight)
                grad_queries[index], grad_maps[i], *rest = torch.autograd.grad(
                    out, wanted, grad[index]
                )
                if need_rows:
                    grad_rows += rest[0]

        with full_precision(grad):
            if rows.numel() < _FEW_NUMBERS:
                run_shares(add, len(ctx.groups), [grad_rows])
            else:
                add(0, len(ctx.groups), grad_rows)
        return None, None, None, grad_queries, grad_rows if need_rows else None, grad_maps
