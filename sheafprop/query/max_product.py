"""Steps of the max-product search over entities, on the logs of truths ``[Q, N]``."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.threads import run_rows

# Numbers that torch's own operations treat at once.
_BLOCK = 2**22


def best_entities(log_truth: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""The :obj:`k` entities of the largest truth for each query; of equal ones the first.

    Returns:
        Their ids and logs of truth ``[Q, k]``, in any order, :math:`-\infty` where there are fewer;
        and the largest of the others ``[Q]``.
    """
    count, width = log_truth.shape
    if k >= width:
        everyone = torch.arange(width, device=log_truth.device).expand(count, -1)
        return everyone, log_truth, log_truth.new_full((count,), -math.inf)
    if backend_of(log_truth) != "numba":
        value, entity = log_truth.sort(dim=1, descending=True, stable=True)
        return entity[:, :k], value[:, :k], value[:, k]
    from sheafprop.query.loops import best_columns

    entity = torch.empty(count, k, dtype=torch.long)
    value, following = log_truth.new_empty(count, k), log_truth.new_empty(count)
    arrays = (log_truth.numpy(), k, entity.numpy(), value.numpy(), following.numpy())
    run_rows(best_columns, arrays, np.arange(count + 1) * width, 2)
    return entity, value, following


def raise_truth(out: Tensor, rows: Tensor, query: Tensor, row: Tensor, value: Tensor) -> None:
    r"""``out[query] = max(out[query], value + rows[row])``, in place, for pairs of query and row.

    Args:
        out (Tensor): Logs of truth, ``[Q, N]``.
        rows (Tensor): Logs of probability, ``[n, N]``.
        query, row, value (Tensor): The pairs, with the log of truth of the entity of the row.
    """
    if query.numel() == 0:
        return
    if backend_of(out) != "numba":
        step = max(1, _BLOCK // max(1, out.shape[1]))
        for q, r, t in zip(query.split(step), row.split(step), value.split(step), strict=True):
            index = q.unsqueeze(1).expand(-1, out.shape[1])
            out.scatter_reduce_(0, index, rows[r] + t.unsqueeze(1), "amax")
        return
    from sheafprop.query.loops import TILE, raise_rows

    query, order = query.sort(stable=True)
    group, size = query.unique_consecutive(return_counts=True)
    start = np.concatenate([np.zeros(1, dtype=np.int64), size.cumsum(0).numpy()])
    pairs = (group.numpy(), start, row[order].numpy(), value[order].numpy())
    tiles = np.arange(-(-out.shape[1] // TILE) + 1) * TILE
    arrays = (out.numpy(), rows.contiguous().numpy(), *pairs)
    run_rows(raise_rows, arrays, tiles, len(order))


def complement(log_truth: Tensor) -> Tensor:
    """The log of one minus the truth."""
    # Either form is exact where the other one loses digits.
    near = torch.log(-torch.expm1(log_truth))
    return torch.where(log_truth > -math.log(2), near, torch.log1p(-torch.exp(log_truth)))


def intersect(parts: Sequence[Tensor]) -> Tensor:
    """The log of the product of truths, the same to the last digit in any order of the parts."""
    return _fold(parts, torch.add)


def unite(parts: Sequence[Tensor]) -> Tensor:
    """The log of ``1 - prod(1 - truth)``, the same to the last digit in any order of the parts."""
    return _fold(parts, _either)


def _either(a: Tensor, b: Tensor) -> Tensor:
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    return torch.logaddexp(high, low + complement(high)).clamp_(max=0)


def _fold(parts: Sequence[Tensor], join) -> Tensor:  # type: ignore[no-untyped-def]
    # Two single numbers are joined alike in both orders; more are rounded once, from doubles.
    wide = parts[0].dtype if len(parts) == 2 else torch.float64
    out = torch.empty_like(parts[0])
    step = max(1, _BLOCK // max(1, out.shape[1]))
    for start in range(0, len(out), step):
        block = slice(start, start + step)
        total = parts[0][block].to(wide)
        for part in parts[1:]:
            total = join(total, part[block].to(wide))
        out[block] = total
    return out
