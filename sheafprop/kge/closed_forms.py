"""Relation parameters that fit given facts best, in closed form.

All functions take rows of facts, one fact a row, in double precision, and weights that add up to
one.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# Singular values, and variances of a column, below this share of the largest, or of the column's
# mean square, are rounding.
_ROUNDING = 1e-10
_SAME = 1e-24


class Facts(NamedTuple):
    """Vectors at the ends of the facts of one relation, ``[m, d]`` each, and weights ``[m]``."""

    head: Tensor
    tail: Tensor
    weight: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean ``[n]`` of rows ``[m, n]``."""
        return self.weight.to(values.dtype) @ values

    def covariance(self, left: Tensor, right: Tensor) -> Tensor:
        r"""The mean ``[n, k]`` of :math:`(l - \bar l)(r - \bar r)^\top` over rows."""
        left, right = left - self.mean(left), right - self.mean(right)
        return (self.weight.unsqueeze(1) * left).T @ right


def fit_line(facts: Facts) -> tuple[Tensor, Tensor]:
    r"""The line :math:`t = a h + b` through the facts of each column, by least squares.

    A column whose heads are all the same has many, and takes the slope one.

    Returns:
        :math:`a` and :math:`b`, ``[d]`` each.
    """
    head, tail = facts.mean(facts.head), facts.mean(facts.tail)
    offset = facts.head - head
    variance = facts.mean(offset**2)
    covariance = facts.mean(offset * (facts.tail - tail))
    open_slope = variance <= _SAME * facts.mean(facts.head**2)
    slope = torch.where(open_slope, 1.0, covariance / variance.masked_fill(open_slope, 1.0))
    return slope, tail - slope * head


def fit_pair(facts: Facts) -> tuple[Tensor, Tensor]:
    r"""The numbers :math:`a, c` of each column with :math:`a^2 + c^2 = 1` and the least mean of
    :math:`(a h - c t)^2`: the eigenvector of the smaller eigenvalue of the :math:`2 \times 2`
    matrix of second moments.

    Its sign, on which nothing depends, is that :math:`a \ge 0`. Where both eigenvalues are the
    same, :math:`a = c`.

    Returns:
        :math:`a` and :math:`c`, ``[d]`` each.
    """
    difference = facts.mean(facts.tail**2) - facts.mean(facts.head**2)
    product = 2 * facts.mean(facts.head * facts.tail)
    angle = torch.atan2(product, difference) / 2
    angle = angle.masked_fill((product == 0) & (difference == 0), torch.pi / 4)
    return angle.cos(), angle.sin()


def closest_rotation(target: Tensor) -> Tensor:
    r"""The orthogonal matrix :math:`Q` with the largest :math:`\mathrm{tr}(Q^\top C)`.

    It is :math:`U V^\top` of the singular value decomposition of :math:`C = U S V^\top` (orthogonal
    Procrustes, Schönemann 1966). Where singular values are zero there are many; of these, the
    closest to the identity.

    Args:
        target (Tensor): :math:`C`, ``[d, d]``.
    """
    left, values, right = torch.linalg.svd(target)
    rank = int((values > _ROUNDING * values[0]).sum())
    left_open, right_open = left[:, rank:], right[rank:].mH
    # The open directions turn as little as they can.
    inner_left, _, inner_right = torch.linalg.svd(left_open.mH @ right_open)
    rest = left_open @ (inner_left @ inner_right) @ right_open.mH
    return left[:, :rank] @ right[:rank] + rest


def widest_direction(covariance: Tensor) -> Tensor:
    """The unit eigenvector ``[d]`` of the largest eigenvalue of a symmetric matrix ``[d, d]``.

    Its sign, on which nothing depends, is that its largest entry is positive.
    """
    vector = torch.linalg.eigh(covariance)[1][:, -1]
    return vector * vector[vector.abs().argmax()].sign()
