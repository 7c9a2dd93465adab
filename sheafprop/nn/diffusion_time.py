r"""Finite diffusion times at the price of their square root.

An affine map :math:`F(y) = x^* + S (y - x^*)` with the spectrum of :math:`S` in :math:`[-1, 1]` has
affine Chebyshev iterates :math:`y_0 = x, y_1 = F(x), y_{j+1} = 2 F(y_j) - y_{j-1}`, which are
:math:`y_j = x^* + T_j(S) (x - x^*)`. A combination with weights that add up to one is therefore
:math:`x^* + p(S) (x - x^*)`, whatever the fixed point is, and :math:`p` can stand for a power or an
exponential of :math:`S`.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.special
import torch
from torch import Tensor


def expansion_error(dtype: torch.dtype) -> float:
    """Where expansions are cut off: just above what the number type resolves."""
    return 1e-12 if torch.finfo(dtype).eps < 1e-10 else 1e-6


def power_weights(exponent: int, eps: float) -> list[float]:
    r"""Chebyshev weights of :math:`s^k` on :math:`[-1, 1]`, cut off at an error of ``eps``.

    They are the probabilities of a random walk of :math:`k` steps to end at :math:`\pm j`, so that
    :math:`\sqrt{2 k \ln(4 / \epsilon)}` of them suffice (Hoeffding). The rest is shared out, so
    that they add up to one.
    """
    steps = np.arange(exponent % 2, exponent + 1, 2, dtype=np.float64)
    ratios = (exponent - steps[:-1]) / (exponent + steps[:-1] + 2)
    walk = np.concatenate([[1.0], np.cumprod(ratios)])
    if exponent % 2 == 0:
        walk[0] /= 2  # the walk ends at 0 in one way, at +j and -j in two
    weights = np.zeros(exponent + 1)
    weights[exponent % 2 :: 2] = walk / walk.sum()
    return _cut(weights, eps)


@torch.compiler.assume_constant_result  # of two numbers, which a compiled layer guards
def exponential_weights(time: float, eps: float) -> list[float]:
    r"""Chebyshev weights of :math:`e^{-T (1 - s)}` on :math:`[-1, 1]`, cut off at an error of
    ``eps``: scaled modified Bessel functions."""
    size = 10 + math.ceil(2 * math.sqrt(2 * time * math.log(4 / eps)) + 2 * math.log(4 / eps))
    weights = 2 * scipy.special.ive(np.arange(size), time)
    weights[0] /= 2
    return _cut(weights, eps)


def affine_chebyshev(step: Callable[[Tensor], Tensor], x: Tensor, weights: list[float]) -> Tensor:
    """The weighted sum of the affine Chebyshev iterates of a map; one call of it for each weight
    after the first."""
    total = weights[0] * x
    last, current = x, x
    for number, weight in enumerate(weights[1:]):
        image = step(current)
        last, current = current, image if number == 0 else 2 * image - last
        if weight:
            total = total + weight * current
    return total


def _cut(weights: np.ndarray, eps: float) -> list[float]:
    # What is cut off counts twice: once missing, once in the scaling of the rest.
    tails = np.cumsum(weights[::-1])[::-1]
    size = max(1, int((2 * tails > eps).sum()))
    kept = weights[:size]
    return (kept / kept.sum()).tolist()
