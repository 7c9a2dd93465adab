"""The cross entropy of distances and its gradient at once, one block of queries at a time."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kernels.pairwise_squares import BLOCK_ELEMENTS, close_pairs, pairs_in_blocks
from sheafprop.kernels.rows import full_precision
from sheafprop.kernels.threads import run_shares

# Queries and candidates of theirs, int64 ``[p]`` each; queries in ascending order.
Pairs = tuple[Tensor, Tensor]

# On a CPU blocks that stay in the cache are faster than large ones.
_CPU_BLOCK_ELEMENTS = 2**20
_LEAST_ROWS = 32
# Numbers in the images of candidates that are held at once by each thread.
_IMAGE_NUMBERS = 2**22


def distance_cross_entropy(
    queries: Tensor,
    candidates: Tensor,
    target: Tensor,
    *,
    maps: Tensor | None = None,
    group: Tensor | None = None,
    squared: bool = False,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    left_out: Pairs | None = None,
) -> Tensor:
    r"""The cross entropy of the true candidate of every query, scored by minus its distance.

    Same as :class:`~sheafprop.kge.CrossEntropyLoss` of minus the distances, but distances,
    probabilities and the gradient of a block of queries come and go before the next block: no
    array of queries x candidates is kept. With maps, a query :math:`\mathbf{q}` is as far from a
    candidate :math:`\mathbf{c}` as from its image under the query's map,

    .. math::
        {\| \mathbf{q} - \mathbf{M} \mathbf{c} \|}^2 = {\| \mathbf{q} \|}^2
        - 2 \, (\mathbf{M}^\top \mathbf{q}) \cdot \mathbf{c}
        + \mathbf{c}^\top \mathbf{M}^\top \mathbf{M} \, \mathbf{c}.

    The middle term is one matrix product for all queries, whatever their maps, and the last one
    belongs to a map and a candidate. Pairs so close that the difference loses its digits are
    computed again from :math:`\mathbf{q} - \mathbf{M} \mathbf{c}`, their gradients too; squared
    distances without maps need none. The gradient at distance zero is zero.

    Args:
        queries (Tensor): Real rows, in the space that the maps lead to.
        candidates (Tensor): Real rows.
        target (Tensor): The true candidate of each query.
        maps (Tensor, optional): One map for each group; the identity without them.
        group (Tensor, optional): The group of each query, in ascending order, none left out.
        squared (bool): Whether distances are squared.
        label_smoothing (float): See :class:`~sheafprop.kge.CrossEntropyLoss`.
        scale (float): See :class:`~sheafprop.kge.CrossEntropyLoss`.
        left_out (tuple, optional): See :class:`~sheafprop.kge.CrossEntropyLoss`.

    Shapes:
        - **queries:** :math:`(B, k)`, **candidates:** :math:`(C, d)`, **maps:** :math:`(G, k, d)`,
          **target, group:** :math:`(B)`
        - **output:** a scalar, the mean over the queries
    """
    with full_precision(queries):
        return _DistanceCrossEntropy.apply(
            queries, candidates, maps, group, target, squared, label_smoothing, scale, left_out
        )


class _DistanceCrossEntropy(torch.autograd.Function):
    """Computes the gradient along with the loss, of which it is a multiple."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        maps: Tensor | None,
        group: Tensor | None,
        target: Tensor,
        squared: bool,
        smoothing: float,
        scale: float,
        left_out: Pairs | None,
    ) -> Tensor:
        size, num_candidates = queries.size(0), candidates.size(0)
        square = queries.square().sum(1, keepdim=True)
        candidate_square = candidates.square().sum(1)
        # M^T q, and c^T M^T M c for every map.
        pulled, image_square, forms = queries, candidate_square.unsqueeze(0), None
        if maps is not None and group is not None:
            counts = torch.bincount(group, minlength=maps.size(0)).tolist()
            pulled = torch.cat([q @ m for q, m in zip(queries.split(counts), maps, strict=True)])
            forms = _Forms(candidates, maps)
            image_square = forms.values()
            # Rounding leaves errors in proportion to |q|^2 + |M|^2 |c|^2 in a squared distance.
            largest = forms.largest().unsqueeze(1)
        # Squares may miss |q|^2, which shifts a row and leaves the loss as it is.
        exact = forms is not None or not squared
        none = target.new_zeros(0)

        need_grad = any(ctx.needs_input_grad[:3])
        grad_queries, grad_candidates, grad_maps, grad_pulled, sums = (
            torch.zeros_like(x) if need_grad and x is not None else queries.new_zeros(0)
            for x in (queries, candidates, maps, pulled if forms else None, image_square)
        )
        rows = block_rows(size, candidates)
        loss = queries.new_zeros(())
        # Sums by group; neighbouring shares of the queries have one group in common at most.
        of_share: dict[int, tuple[int, Tensor]] = {}

        def add_blocks(
            first: int, last: int, loss: Tensor, grad_candidates: Tensor, grad_maps: Tensor
        ) -> None:
            distances = queries.new_empty(rows, num_candidates)
            # Distances are needed again to divide by, their squares are not.
            weights = distances if squared else torch.empty_like(distances)
            begin, end = 0, 0
            if group is not None:
                begin, end = (int(group[i]) for i in (first * rows, min(last * rows, size) - 1))
            part = queries.new_zeros(end - begin + 1 if need_grad else 0, num_candidates)
            of_share[first] = begin, part
            for start in range(first * rows, min(last * rows, size), rows):
                block = slice(start, start + rows)
                query, true = queries[block], target[block].unsqueeze(1)
                own = None if group is None else group[block]
                d, w = distances[: query.size(0)], weights[: query.size(0)]
                if own is None:
                    torch.addmm(candidate_square, query, candidates.t(), alpha=-2, out=d)
                else:
                    torch.index_select(image_square, 0, own, out=d)
                    d.addmm_(pulled[block], candidates.t(), alpha=-2)
                close: Pairs = none, none
                if exact:
                    d.add_(square[block])
                    factor = 1.0 if own is None else largest[own]
                    close = close_pairs(d, square[block], candidate_square, factor)
                for i, j, residual in _residuals(query, candidates, maps, own, close):
                    d[i, j] = residual.square().sum(1)
                if not squared:
                    d.sqrt_()
                out = pairs_within(left_out, block)
                loss += softmax_weights(d, w, true, smoothing, scale, size, out)
                if not need_grad:
                    continue
                length = d[close].fill_(0.5) if squared else d[close]
                weight_close = w[close] / length.masked_fill(length == 0, math.inf)
                w.div_(0.5 if squared else d)
                w[close] = 0.0
                kept = query * w.sum(1, keepdim=True)
                if own is None:
                    torch.addmm(kept, w, candidates, alpha=-1, out=grad_queries[block])
                    part += w.sum(0)
                else:
                    grad_queries[block] = kept
                    torch.mm(w, candidates, out=grad_pulled[block]).neg_()
                    part.index_add_(0, own - begin, w)
                grad_candidates.addmm_(w.t(), pulled[block], alpha=-1)
                grads = grad_queries[block], grad_candidates, grad_maps
                _add_close(query, candidates, maps, own, close, weight_close, grads)

        totals = loss, grad_candidates, grad_maps
        cost = 3 * size * candidates.numel()
        run_shares(add_blocks, -(-size // max(1, rows)), totals, cost)
        if need_grad:
            for _, (own, part) in sorted(of_share.items()):
                sums[own : own + len(part)] += part
            if maps is None or forms is None:
                grad_candidates.addcmul_(candidates, sums.t())
            else:
                forms.add_gradient(sums, grad_candidates, grad_maps)
                parts = (x.split(counts) for x in (queries, grad_pulled, grad_queries))
                for r, (q, g, grad_q) in enumerate(zip(*parts, strict=True)):
                    grad_maps[r].addmm_(q.t(), g)
                    grad_q.addmm_(g, maps[r].t())
            ctx.save_for_backward(grad_queries, grad_candidates, grad_maps)
        return loss / size

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = [grad * saved for saved in ctx.saved_tensors]
        return *found[:2], found[2] if ctx.needs_input_grad[2] else None, *[None] * 6


class _Forms:
    """The quadratic forms ``|M c|^2`` of candidates, by the smaller of M^T M and M."""

    def __init__(self, candidates: Tensor, maps: Tensor):
        self._candidates, self._maps = candidates, maps
        self._narrow = maps.size(1) < maps.size(2)
        self._gram = maps @ maps.mT if self._narrow else maps.mT @ maps

    def largest(self) -> Tensor:
        """An upper bound of the greatest eigenvalue of each M^T M."""
        return torch.linalg.matrix_norm(self._gram)

    def values(self) -> Tensor:
        """The forms of all maps and candidates ``[G, C]``."""
        out = self._candidates.new_empty(self._maps.size(0), self._candidates.size(0))

        def fill(first: int, last: int, _: Tensor) -> None:
            for r, rows, image in self._images(first, last):
                other = image if self._narrow else self._candidates[rows]
                torch.sum(image.mul_(other), 1, out=out[r, rows])

        run_shares(fill, len(out), [out.new_zeros(0)], self._cost)
        return out

    def add_gradient(self, weight: Tensor, grad_candidates: Tensor, grad_maps: Tensor) -> None:
        """Adds half the gradient of the forms weighted by ``weight [G, C]``."""

        def add(first: int, last: int, grad_candidates: Tensor) -> None:
            for r, rows, image in self._images(first, last):
                c, w = self._candidates[rows], weight[r, rows].unsqueeze(1)
                if self._narrow:
                    image.mul_(w)
                    grad_candidates[rows].addmm_(image, self._maps[r])
                    grad_maps[r].addmm_(image.t(), c)
                else:
                    grad_candidates[rows].addcmul_(image, w)
                    torch.mul(c, w, out=image)
                    grad_maps[r].addmm_(self._maps[r], image.t() @ c)

        run_shares(add, len(weight), [grad_candidates], 2 * self._cost)

    @property
    def _cost(self) -> int:
        return self._maps.numel() * self._candidates.size(0)

    def _images(self, first: int, last: int) -> Iterator[tuple[int, slice, Tensor]]:
        """M c, or M^T M c, of some candidates at a time for some maps, in the same memory."""
        by = self._maps.mT if self._narrow else self._gram
        step = max(1, _IMAGE_NUMBERS // by.size(2))
        buffer = self._candidates.new_empty(min(step, self._candidates.size(0)), by.size(2))
        for r in range(first, last):
            for start in range(0, self._candidates.size(0), step):
                rows = slice(start, start + step)
                some = self._candidates[rows]
                yield r, rows, torch.mm(some, by[r], out=buffer[: len(some)])


def _residuals(
    queries: Tensor, candidates: Tensor, maps: Tensor | None, group: Tensor | None, pairs: Pairs
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """``q - M c`` of pairs, in blocks of pairs of one map."""
    if maps is None or group is None:
        for i, j in pairs_in_blocks(*pairs, queries.size(1)):
            yield i, j, queries[i] - candidates[j]
        return
    if pairs[0].numel() == 0:
        return
    # Queries are in the order of their groups, and pairs in that of queries.
    owners, counts = group[pairs[0]].unique_consecutive(return_counts=True)
    step = max(1, BLOCK_ELEMENTS // max(maps.size(1), maps.size(2)))
    of_group = zip(*(p.split(counts.tolist()) for p in pairs), strict=True)
    for r, (rows, columns) in zip(owners.tolist(), of_group, strict=True):
        for i, j in zip(rows.split(step), columns.split(step), strict=True):
            yield i, j, queries[i] - candidates[j] @ maps[r].t()


def _add_close(
    queries: Tensor,
    candidates: Tensor,
    maps: Tensor | None,
    group: Tensor | None,
    pairs: Pairs,
    weight: Tensor,
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Adds the gradients of close pairs, from their residuals."""
    grad_queries, grad_candidates, grad_maps = grads
    begin = 0
    for i, j, residual in _residuals(queries, candidates, maps, group, pairs):
        residual.mul_(weight[begin : begin + i.numel()].unsqueeze(1))
        begin += i.numel()
        grad_queries.index_add_(0, i, residual)
        if maps is None or group is None:
            grad_candidates.index_add_(0, j, residual, alpha=-1)
            continue
        r = group[i[0]]
        grad_candidates.index_add_(0, j, residual @ maps[r], alpha=-1)
        grad_maps[r].addmm_(residual.t(), candidates[j], alpha=-1)


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
