"""Distances between rows and their gradients, without a tensor of rows x candidates x width, also
of the queries of each relation to candidates under the map of that relation."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kernels.pairwise_squares import BLOCK_ELEMENTS, correct_close, pairs_in_blocks
from sheafprop.kernels.rows import full_precision
from sheafprop.kernels.threads import run_chunks, run_shares


def row_distance(residual: Tensor, *, p: float, squared: bool, block: int) -> Tensor:
    r"""The :math:`p`-norm of the last dimension of :obj:`residual`.

    The gradient at a residual of zero is zero.

    Args:
        residual (Tensor): Real differences of shape :math:`(*, m)`.
        p (float): The exponent of the norm, at least 1.
        squared (bool): Whether to return the squared norm.
        block (int): Neighbouring columns that are one number, whose modulus enters the norm: two
            of complex numbers, four of quaternions.

    Shapes:
        - output: :math:`(*)`
    """
    if p == 2.0 and squared:
        return residual.square().sum(-1)
    if block > 1 and p != 2.0:
        residual = torch.linalg.vector_norm(residual.unflatten(-1, (-1, block)), dim=-1)
    distance = torch.linalg.vector_norm(residual, ord=p, dim=-1)
    return distance.square() if squared else distance


def pairwise_distance(
    queries: Tensor, candidates: Tensor, *, p: float, squared: bool, block: int
) -> Tensor:
    r"""The distance of every query to every candidate, summed over the sections.

    For :math:`p = 2` it is computed as :math:`|a|^2 - 2 a \cdot b + |b|^2` by one matrix product,
    and the pairs that are so close that this difference loses its digits are computed again from
    :math:`a - b`, the distance as well as its gradient. The relative error of a distance thus stays
    below the square root of the machine epsilon. The gradient at distance zero is zero.

    Args:
        queries (Tensor): Real rows.
        candidates (Tensor): Real rows of the same sections and width.
        p (float): The exponent of the norm, at least 1.
        squared (bool): Whether to sum squared distances.
        block (int): How many neighbouring columns are one number.

    Shapes:
        - **queries:** :math:`(B, s, m)`, **candidates:** :math:`(C, s, m)`
        - **output:** :math:`(B, C)`
    """
    if p == 2.0 and squared:
        # The squares of all sections add up to those of one long row.
        return _EuclideanDistance.apply(queries.flatten(1), candidates.flatten(1), True)
    total: Tensor | None = None
    for section in range(queries.size(1)):
        a, b = queries[:, section], candidates[:, section]
        if p == 2.0:
            distance = _EuclideanDistance.apply(a, b, False)
        elif block > 1:
            distance = _distance_of_moduli(a, b, p, block)
        else:
            distance = torch.cdist(a, b, p=p)
        distance = distance.square() if squared else distance
        total = distance if total is None else total + distance
    assert total is not None
    return total


def _distance_of_moduli(a: Tensor, b: Tensor, p: float, block: int) -> Tensor:
    width = a.size(1)
    num_columns = max(1, min(b.size(0), BLOCK_ELEMENTS // width))
    num_rows = max(1, BLOCK_ELEMENTS // (width * num_columns))

    def measure(rows: Tensor, columns: Tensor) -> Tensor:
        residual = rows.unsqueeze(1) - columns.unsqueeze(0)
        return row_distance(residual, p=p, squared=False, block=block)

    column_blocks = b.split(num_columns)
    return torch.cat(
        [
            torch.cat([recompute(measure, rows, columns) for columns in column_blocks], dim=1)
            for rows in a.split(num_rows)
        ]
    )


def recompute(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """Calls :obj:`function` and keeps nothing but its arguments for the backward pass.

    The non-reentrant checkpoint of PyTorch holds what it computed again until all of the backward
    pass is over, hence once per block.
    """
    return _Recomputed.apply(function, *args)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *args: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*args)
        return function(*args)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        args = [
            arg.detach().requires_grad_(need)
            for arg, need in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad(), full_precision(grad):
            out = ctx.function(*args)
            wanted = [arg for arg in args if arg.requires_grad]
            gradients = iter(torch.autograd.grad(out, wanted, grad))
        return None, *(next(gradients) if need else None for need in needed)


class _EuclideanDistance(torch.autograd.Function):
    """Euclidean distances of all rows of two matrices, by matrix products in both directions."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, squared: bool) -> Tensor:
        a_square = a.square().sum(1, keepdim=True)
        b_square = b.square().sum(1, keepdim=True)
        out = torch.addmm(b_square.t(), a, b.t(), alpha=-2).add_(a_square)
        rows, columns = correct_close(out, a, b, a_square, b_square.flatten())
        ctx.squared = squared
        if squared:
            ctx.save_for_backward(a, b)
        else:
            out.sqrt_()
            ctx.save_for_backward(a, b, out, rows, columns)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        with full_precision(grad):
            if ctx.squared:
                a, b = ctx.saved_tensors
                weight = 2 * grad
            else:
                a, b, distance, rows, columns = ctx.saved_tensors
                weight = grad / distance
                weight[rows, columns] = 0.0
            grad_a = _weighted_differences(weight, a, b) if ctx.needs_input_grad[0] else None
            grad_b = _weighted_differences(weight.t(), b, a) if ctx.needs_input_grad[1] else None
            if not ctx.squared and rows.numel() > 0:
                close = rows, columns
                for i, j, unit in close_units(a, b, distance, close, grad[close]):
                    if grad_a is not None:
                        grad_a.index_add_(0, i, unit)
                    if grad_b is not None:
                        grad_b.index_add_(0, j, unit, alpha=-1)
        return grad_a, grad_b, None


def close_units(
    a: Tensor, b: Tensor, distance: Tensor, pairs: tuple[Tensor, Tensor], weight: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The weighted unit vectors from b to a of the pairs, in blocks; zero at distance zero."""
    for i, j, w in pairs_in_blocks(*pairs, a.size(1), weight):
        length = distance[i, j].unsqueeze(1)
        unit = (a[i] - b[j]) / length.masked_fill(length == 0, math.inf)
        yield i, j, unit * w.unsqueeze(1)


def _weighted_differences(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    # sum_j w_ij (a_i - b_j)
    return torch.addmm(a * weight.sum(1, keepdim=True), weight, b, alpha=-1)


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
