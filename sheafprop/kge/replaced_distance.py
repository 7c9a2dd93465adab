"""Distances of queries to candidates of their own, one block of queries at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kernels.backend import as_arrays, backend_of, stable_order
from sheafprop.kernels.pairwise_squares import BLOCK_ELEMENTS
from sheafprop.kernels.rows import full_precision
from sheafprop.kernels.threads import run_rows

# On a CPU blocks that stay in the cache are faster than large ones.
_CPU_BLOCK_ELEMENTS = 2**18


def replaced_distance(
    queries: Tensor, candidates: Tensor, index: Tensor, choice: Tensor, *, squared: bool = False
) -> Tensor:
    r"""The Euclidean distances of queries to some candidates each.

    .. math::
        d_{ij} = {\| \mathbf{q}_{c_{ij}, i} - \mathbf{x}_{e_{ij}} \|}_2

    No array of differences is formed on a CPU; elsewhere candidates are fetched for a block of
    queries at a time, and again in the backward pass. The gradient at distance zero is zero.

    Args:
        queries (Tensor): Alternative rows :math:`\mathbf{q}` of each query.
        candidates (Tensor): Real rows :math:`\mathbf{x}` of the same width.
        index (Tensor): The candidates :math:`e` of each query.
        choice (Tensor): Which row :math:`c` of the query each candidate is compared with.
        squared (bool): Whether distances are squared.

    Shapes:
        - **queries:** :math:`(a, B, m)`, **candidates:** :math:`(C, m)`
        - **index, choice, output:** :math:`(B, n)`
    """
    with full_precision(queries):
        return _ReplacedDistance.apply(queries, candidates, index, choice, squared)


class _ReplacedDistance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, rows: Tensor, index: Tensor, choice: Tensor, squared: bool
    ) -> Tensor:
        out = queries.new_empty(index.shape)
        ctx.compiled = backend_of(queries) == "numba"
        if ctx.compiled:
            _lengths(queries, rows, index, choice, out)
        else:
            for block, difference in _differences(queries, rows, index, choice):
                torch.linalg.vector_norm(difference, dim=2, out=out[block])
        ctx.squared = squared
        ctx.save_for_backward(queries, rows, index, choice, out)
        return out.square() if squared else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, rows, index, choice, distance = ctx.saved_tensors
        weight = 2 * grad if ctx.squared else (grad / distance).masked_fill_(distance == 0, 0.0)
        sums = _compiled_sums if ctx.compiled else _sums
        with full_precision(grad):
            gradients = sums(queries, rows, index, choice, weight, ctx.needs_input_grad)
        return *gradients, None, None, None


def _lengths(queries: Tensor, rows: Tensor, index: Tensor, choice: Tensor, out: Tensor) -> None:
    from sheafprop.kernels.distance_loops import lengths

    for name, ids, size in (("index", index, len(rows)), ("choice", choice, len(queries))):
        low, high = ids.aminmax() if ids.numel() else (0, 0)
        if low < 0 or high >= size:
            raise IndexError(
                f"'{name}' needs numbers from 0 to {size - 1} (got {int(low)} to {int(high)})"
            )
    flat, place = queries.flatten(0, 1), _place(queries, choice)
    arguments = as_arrays(flat, rows, place, index.flatten(), out.view(-1))
    run_rows(lengths, arguments, np.arange(index.numel() + 1), rows.size(1))


def _compiled_sums(
    queries: Tensor,
    rows: Tensor,
    index: Tensor,
    choice: Tensor,
    weight: Tensor,
    needed: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor | None]:
    """Each row of a gradient is summed up on its own, so that threads change no sum."""
    from sheafprop.kernels.distance_loops import weighted_sums

    flat, place, index = queries.flatten(0, 1), _place(queries, choice), index.flatten()
    found: list[Tensor | None] = []
    for need, a, in_a, b, in_b in (
        (needed[0], flat, place, rows, index),
        (needed[1], rows, index, flat, place),
    ):
        out = a.new_empty(a.shape) if need else None
        if out is not None:
            start, order = stable_order(in_a, a.size(0))
            arguments = as_arrays(start, order, weight.flatten(), a, b, in_b, out)
            run_rows(weighted_sums, arguments, start.numpy(), a.size(1))
        found.append(out)
    grad_queries, grad_rows = found
    return None if grad_queries is None else grad_queries.view_as(queries), grad_rows


def _place(queries: Tensor, choice: Tensor) -> Tensor:
    """The chosen rows, numbered over all queries."""
    size = queries.size(1)
    return (size * choice + torch.arange(size, device=choice.device).unsqueeze(1)).flatten()


def _sums(
    queries: Tensor,
    rows: Tensor,
    index: Tensor,
    choice: Tensor,
    weight: Tensor,
    needed: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor | None]:
    grad_queries = torch.zeros_like(queries) if needed[0] else None
    grad_rows = torch.zeros_like(rows) if needed[1] else None
    chosen = torch.arange(len(queries), device=choice.device).view(1, -1, 1)
    for block, difference in _differences(queries, rows, index, choice):
        difference.mul_(weight[block].unsqueeze(2))
        if grad_queries is not None:
            share = (choice[block].unsqueeze(1) == chosen).to(difference.dtype)
            grad_queries[:, block] = torch.bmm(share, difference).transpose(0, 1)
        if grad_rows is not None:
            flat = difference.flatten(0, 1)
            grad_rows.index_add_(0, index[block].flatten(), flat, alpha=-1)
    return grad_queries, grad_rows


def _differences(
    queries: Tensor, rows: Tensor, index: Tensor, choice: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of queries with their differences [b, n, m], which are overwritten by the next."""
    size, width = queries.shape[1:]
    elements = _CPU_BLOCK_ELEMENTS if rows.device.type == "cpu" else BLOCK_ELEMENTS
    step = max(1, min(size, elements // max(1, index.size(1) * width)))
    own, other = rows.new_empty(2, step, index.size(1), width)
    flat = queries.reshape(-1, width)
    place = _place(queries, choice).view(index.shape)
    for start in range(0, size, step):
        block = slice(start, start + step)
        a, b = (x.flatten(0, 1)[: index[block].numel()] for x in (own, other))
        torch.index_select(flat, 0, place[block].flatten(), out=a)
        torch.index_select(rows, 0, index[block].flatten(), out=b)
        yield block, a.sub_(b).view(len(index[block]), *own.shape[1:])
