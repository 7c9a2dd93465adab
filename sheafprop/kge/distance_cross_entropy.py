"""The cross entropy of Euclidean distances and its gradient, one block of queries at a time."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kernels.pairwise_squares import BLOCK_ELEMENTS, correct_close
from sheafprop.kernels.rows import full_precision
from sheafprop.kernels.threads import run_shares
from sheafprop.kge.distance import close_units

# Queries and candidates of theirs, int64 ``[p]`` each; queries in ascending order.
Pairs = tuple[Tensor, Tensor]

# On a CPU blocks that stay in the cache are faster than large ones.
_CPU_BLOCK_ELEMENTS = 2**20
_LEAST_ROWS = 32


def distance_cross_entropy(
    queries: Tensor,
    candidates: Tensor,
    target: Tensor,
    *,
    squared: bool = False,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    left_out: Pairs | None = None,
) -> Tensor:
    r"""The cross entropy of the true candidate of every query, scored by minus its distance.

    Same as :class:`~sheafprop.kge.CrossEntropyLoss` of minus the distances, but distances,
    probabilities and the gradient of a block of queries come and go before the next block: no
    array of queries x candidates is kept. The gradient at distance zero is zero.

    Args:
        queries (Tensor): Real rows.
        candidates (Tensor): Real rows of the same width.
        target (Tensor): The true candidate of each query.
        squared (bool): Whether distances are squared.
        label_smoothing (float): See :class:`~sheafprop.kge.CrossEntropyLoss`.
        scale (float): See :class:`~sheafprop.kge.CrossEntropyLoss`.
        left_out (tuple, optional): See :class:`~sheafprop.kge.CrossEntropyLoss`.

    Shapes:
        - **queries:** :math:`(B, m)`, **candidates:** :math:`(C, m)`, **target:** :math:`(B)`
        - **output:** a scalar, the mean over the queries
    """
    with full_precision(queries):
        return _DistanceCrossEntropy.apply(
            queries, candidates, target, squared, label_smoothing, scale, left_out
        )


class _DistanceCrossEntropy(torch.autograd.Function):
    """Computes the gradient along with the loss, of which it is a multiple."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        target: Tensor,
        squared: bool,
        smoothing: float,
        scale: float,
        left_out: Pairs | None,
    ) -> Tensor:
        size, num_candidates = a.size(0), b.size(0)
        a_square, b_square = a.square().sum(1, keepdim=True), b.square().sum(1)
        rows = block_rows(size, b)
        need_grad = any(ctx.needs_input_grad[:2])
        grad_a, grad_b, columns = (
            torch.zeros_like(x) if need_grad else x.new_zeros(0) for x in (a, b, b[:, :1])
        )
        loss = a.new_zeros(())

        def add_blocks(
            first: int, last: int, loss: Tensor, grad_b: Tensor, columns: Tensor
        ) -> None:
            distances = a.new_empty(rows, num_candidates)
            # Distances are needed again to divide by, their squares are not.
            weights = distances if squared else torch.empty_like(distances)
            for start in range(first * rows, min(last * rows, size), rows):
                block = slice(start, start + rows)
                query, true = a[block], target[block].unsqueeze(1)
                d, w = distances[: query.size(0)], weights[: query.size(0)]
                torch.addmm(b_square, query, b.t(), alpha=-2, out=d)
                if not squared:
                    d.add_(a_square[block])
                    close = correct_close(d, query, b, a_square[block], b_square)
                    d.sqrt_()
                # Squares miss |a|^2, which shifts a row and leaves the loss as it is.
                out = pairs_within(left_out, block)
                loss += softmax_weights(d, w, true, smoothing, scale, size, out)
                if not need_grad:
                    continue
                if squared:
                    w.mul_(2)
                else:
                    weight_close = w[close]
                    w.div_(d)
                    w[close] = 0.0
                torch.addmm(query * w.sum(1, keepdim=True), w, b, alpha=-1, out=grad_a[block])
                grad_b.addmm_(w.t(), query, alpha=-1)
                columns += w.sum(0).unsqueeze(1)
                if not squared and weight_close.numel() > 0:
                    for i, j, unit in close_units(query, b, d, close, weight_close):
                        grad_a[block].index_add_(0, i, unit)
                        grad_b.index_add_(0, j, unit, alpha=-1)

        totals = loss, grad_b, columns
        run_shares(add_blocks, -(-size // max(1, rows)), totals, 3 * size * b.numel())
        if need_grad:
            ctx.save_for_backward(grad_a, grad_b.addcmul_(b, columns))
        return loss / size

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_a, grad_b = ctx.saved_tensors
        return grad * grad_a, grad * grad_b, *[None] * 5


def block_rows(num_queries: int, candidates: Tensor) -> int:
    """The number of queries in a block."""
    elements = _CPU_BLOCK_ELEMENTS if candidates.device.type == "cpu" else BLOCK_ELEMENTS
    return min(num_queries, max(_LEAST_ROWS, elements // candidates.size(0)))


def pairs_within(pairs: Pairs | None, block: slice) -> Pairs | None:
    """The pairs of the queries of a block, which count from its first."""
    if pairs is None:
        return None
    rows, columns = pairs
    ends = torch.tensor([block.start, block.stop], device=rows.device)
    first, last = torch.searchsorted(rows, ends).tolist()
    return rows[first:last] - block.start, columns[first:last]


def softmax_weights(
    distance: Tensor,
    out: Tensor,
    target: Tensor,
    smoothing: float,
    scale: float,
    size: int,
    left_out: Pairs | None = None,
) -> Tensor:
    """The summed loss of a block of queries, and in ``out`` the gradient of the mean over ``size``
    queries by the distances. ``out`` may be ``distance``, which is infinite for pairs left out."""
    share: Tensor | float = smoothing / distance.size(1)
    smoothed = distance.sum(1, keepdim=True) if smoothing > 0.0 else None
    if left_out is not None:
        if smoothed is not None:
            smoothed[:, 0].index_add_(0, left_out[0], distance[left_out], alpha=-1)
            gone = left_out[0].bincount(minlength=distance.size(0)).unsqueeze(1)
            share = smoothing / (distance.size(1) - gone).to(distance.dtype)
        distance[left_out] = math.inf
    lowest = distance.amin(1, keepdim=True)
    expected = (1 - smoothing) * (distance.gather(1, target) - lowest).sum()
    if smoothed is not None:
        expected += (share * smoothed - smoothing * lowest).sum()
    torch.sub(lowest, distance, out=out).mul_(scale).exp_()
    total = out.sum(1, keepdim=True)
    factor = scale / size
    out.mul_(-factor / total)
    if smoothing > 0.0:
        out.add_(factor * share)
        if left_out is not None:
            out[left_out] = 0.0
    out.scatter_add_(1, target, out.new_full(target.shape, factor * (1 - smoothing)))
    return total.log().sum() + scale * expected
