"""The cross entropy of distances under the maps of relations, and its gradient at once."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kernels.pairwise_squares import BLOCK_ELEMENTS, close_pairs
from sheafprop.kernels.rows import full_precision
from sheafprop.kernels.threads import run_shares
from sheafprop.kge.distance_cross_entropy import Pairs, block_rows, pairs_within, softmax_weights

# Numbers in the images of candidates that are held at once by each thread.
_IMAGE_NUMBERS = 2**22


def mapped_cross_entropy(
    queries: Tensor,
    candidates: Tensor,
    maps: Tensor,
    group: Tensor,
    target: Tensor,
    *,
    squared: bool = False,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    left_out: Pairs | None = None,
) -> Tensor:
    r"""The cross entropy of the true candidate of every query, where a query :math:`\mathbf{q}` is
    as far from a candidate :math:`\mathbf{c}` as from its image under the query's map,

    .. math::
        {\| \mathbf{q} - \mathbf{M} \mathbf{c} \|}^2 = {\| \mathbf{q} \|}^2
        - 2 \, (\mathbf{M}^\top \mathbf{q}) \cdot \mathbf{c}
        + \mathbf{c}^\top \mathbf{M}^\top \mathbf{M} \, \mathbf{c}.

    The middle term is one matrix product for all queries, whatever their maps, and the last one
    belongs to a map and a candidate. Pairs so close that the difference loses its digits are
    computed again from :math:`\mathbf{q} - \mathbf{M} \mathbf{c}`, their gradients too. The
    gradient at distance zero is zero.

    Args:
        queries (Tensor): Rows, in the space that the maps lead to.
        candidates (Tensor): Rows.
        maps (Tensor): One map for each group.
        group (Tensor): The group of each query, in ascending order, none left out.
        target (Tensor): The true candidate of each query.
        squared (bool): Whether distances are squared.
        label_smoothing (float): See :class:`~sheafprop.kge.CrossEntropyLoss`.
        scale (float): See :class:`~sheafprop.kge.CrossEntropyLoss`.
        left_out (tuple, optional): See :class:`~sheafprop.kge.CrossEntropyLoss`.

    Shapes:
        - **queries:** :math:`(B, k)`, **candidates:** :math:`(C, d)`, **maps:** :math:`(G, k, d)`,
          **group, target:** :math:`(B)`
        - **output:** a scalar, the mean over the queries
    """
    with full_precision(queries):
        return _MappedCrossEntropy.apply(
            queries, candidates, maps, group, target, squared, label_smoothing, scale, left_out
        )


class _MappedCrossEntropy(torch.autograd.Function):
    """Computes the gradient along with the loss, of which it is a multiple."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        maps: Tensor,
        group: Tensor,
        target: Tensor,
        squared: bool,
        smoothing: float,
        scale: float,
        left_out: Pairs | None,
    ) -> Tensor:
        size, num_candidates = queries.size(0), candidates.size(0)
        counts = torch.bincount(group, minlength=maps.size(0)).tolist()
        # M^T q, and c^T M^T M c for every map.
        pulled = torch.cat([q @ m for q, m in zip(queries.split(counts), maps, strict=True)])
        forms = _Forms(candidates, maps)
        image_square = forms.values()
        square = queries.square().sum(1, keepdim=True)
        # Rounding leaves errors in proportion to |q|^2 + |M|^2 |c|^2 in a squared distance.
        largest, candidate_square = forms.largest(), candidates.square().sum(1)

        need_grad = any(ctx.needs_input_grad[:3])
        grad_queries, grad_candidates, grad_maps, grad_pulled, sums = (
            torch.zeros_like(x) if need_grad else x.new_zeros(0)
            for x in (queries, candidates, maps, pulled, image_square)
        )
        rows = block_rows(size, candidates)
        loss = queries.new_zeros(())
        # Sums by group; neighbouring shares of the queries have one group in common at most.
        of_share: dict[int, tuple[int, Tensor]] = {}

        def add_blocks(
            first: int, last: int, loss: Tensor, grad_candidates: Tensor, grad_maps: Tensor
        ) -> None:
            distances = queries.new_empty(rows, num_candidates)
            weights = distances if squared else torch.empty_like(distances)
            begin, end = (int(group[i]) for i in (first * rows, min(last * rows, size) - 1))
            part = queries.new_zeros(end - begin + 1 if need_grad else 0, num_candidates)
            of_share[first] = begin, part
            for start in range(first * rows, min(last * rows, size), rows):
                block = slice(start, start + rows)
                own, true = group[block], target[block].unsqueeze(1)
                d, w = distances[: own.numel()], weights[: own.numel()]
                torch.index_select(image_square, 0, own, out=d)
                d.addmm_(pulled[block], candidates.t(), alpha=-2).add_(square[block])
                close = close_pairs(d, square[block], candidate_square, largest[own].unsqueeze(1))
                for i, j, residual in _residuals(queries[block], candidates, maps, own, close):
                    d[i, j] = residual.square().sum(1)
                if not squared:
                    d.sqrt_()
                out = pairs_within(left_out, block)
                loss += softmax_weights(d, w, true, smoothing, scale, size, out)
                if not need_grad:
                    continue
                weight_close = w[close]
                if squared:
                    w.mul_(2)
                    weight_close = 2 * weight_close
                else:
                    length = d[close]
                    weight_close = weight_close / length.masked_fill(length == 0, math.inf)
                    w.div_(d)
                w[close] = 0.0
                torch.mul(queries[block], w.sum(1, keepdim=True), out=grad_queries[block])
                torch.mm(w, candidates, out=grad_pulled[block]).neg_()
                grad_candidates.addmm_(w.t(), pulled[block], alpha=-1)
                part.index_add_(0, own - begin, w)
                _add_close(
                    queries[block], candidates, maps, own, close, weight_close,
                    (grad_queries[block], grad_candidates, grad_maps),
                )  # fmt: skip

        totals = loss, grad_candidates, grad_maps
        cost = 3 * size * candidates.numel()
        run_shares(add_blocks, -(-size // max(1, rows)), totals, cost)
        if need_grad:
            for _, (own, part) in sorted(of_share.items()):
                sums[own : own + len(part)] += part
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
        return *(grad * saved for saved in ctx.saved_tensors), *[None] * 6


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
    queries: Tensor,
    candidates: Tensor,
    maps: Tensor,
    group: Tensor,
    pairs: tuple[Tensor, Tensor],
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """``q - M c`` of pairs, in blocks of pairs of one map."""
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
    maps: Tensor,
    group: Tensor,
    pairs: tuple[Tensor, Tensor],
    weight: Tensor,
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Adds the gradients of close pairs, from their residuals."""
    grad_queries, grad_candidates, grad_maps = grads
    begin = 0
    for i, j, residual in _residuals(queries, candidates, maps, group, pairs):
        residual.mul_(weight[begin : begin + i.numel()].unsqueeze(1))
        begin += i.numel()
        r = group[i[0]]
        grad_queries.index_add_(0, i, residual)
        grad_candidates.index_add_(0, j, residual @ maps[r], alpha=-1)
        grad_maps[r].addmm_(residual.t(), candidates[j], alpha=-1)
