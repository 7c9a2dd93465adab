"""Distances of queries to candidates of their own, one block of queries at a time."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kge.distance import BLOCK_ELEMENTS, full_precision

# On a CPU blocks that stay in the cache are faster than large ones.
_CPU_BLOCK_ELEMENTS = 2**18


def replaced_distance(
    queries: Tensor, candidates: Tensor, index: Tensor, choice: Tensor, *, squared: bool = False
) -> Tensor:
    r"""The Euclidean distances of queries to some candidates each.

    .. math::
        d_{ij} = {\| \mathbf{q}_{i, c_{ij}} - \mathbf{x}_{e_{ij}} \|}_2

    Candidates are fetched for a block of queries at a time, and again in the backward pass. The
    gradient at distance zero is zero.

    Args:
        queries (Tensor): Alternative rows :math:`\mathbf{q}` of each query.
        candidates (Tensor): Real rows :math:`\mathbf{x}` of the same width.
        index (Tensor): The candidates :math:`e` of each query.
        choice (Tensor): Which row :math:`c` of the query each candidate is compared with.
        squared (bool): Whether distances are squared.

    Shapes:
        - **queries:** :math:`(B, a, m)`, **candidates:** :math:`(C, m)`
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
        grad_queries = torch.zeros_like(queries) if ctx.needs_input_grad[0] else None
        grad_rows = torch.zeros_like(rows) if ctx.needs_input_grad[1] else None
        chosen = torch.arange(queries.size(1), device=choice.device).view(1, -1, 1)
        with full_precision(grad):
            for block, difference in _differences(queries, rows, index, choice):
                difference.mul_(weight[block].unsqueeze(2))
                if grad_queries is not None:
                    share = (choice[block].unsqueeze(1) == chosen).to(difference.dtype)
                    torch.bmm(share, difference, out=grad_queries[block])
                if grad_rows is not None:
                    flat = difference.flatten(0, 1)
                    grad_rows.index_add_(0, index[block].flatten(), flat, alpha=-1)
        return grad_queries, grad_rows, None, None, None


def _differences(
    queries: Tensor, rows: Tensor, index: Tensor, choice: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of queries with their differences [b, n, m], which are overwritten by the next."""
    size, num_choices, width = queries.shape
    elements = _CPU_BLOCK_ELEMENTS if rows.device.type == "cpu" else BLOCK_ELEMENTS
    step = max(1, min(size, elements // max(1, index.size(1) * width)))
    own, other = rows.new_empty(2, step, index.size(1), width)
    flat = queries.reshape(-1, width)
    place = choice + num_choices * torch.arange(size, device=choice.device).unsqueeze(1)
    for start in range(0, size, step):
        block = slice(start, start + step)
        shape = (-1, *own.shape[1:])
        a, b = (x.flatten(0, 1)[: index[block].numel()] for x in (own, other))
        torch.index_select(flat, 0, place[block].flatten(), out=a)
        torch.index_select(rows, 0, index[block].flatten(), out=b)
        yield block, a.sub_(b).view(shape)
