r"""Diffusion for a given time, and finite diffusion times at the price of their square root.

An affine map :math:`F(y) = x^* + S (y - x^*)` with the spectrum of :math:`S` in :math:`[-1, 1]` has
affine Chebyshev iterates :math:`y_0 = x, y_1 = F(x), y_{j+1} = 2 F(y_j) - y_{j-1}`, which are
:math:`y_j = x^* + T_j(S) (x - x^*)`. A combination with weights that add up to one is therefore
:math:`x^* + p(S) (x - x^*)`, whatever the fixed point is, and :math:`p` can stand for a power or an
exponential of :math:`S`.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import scipy.special
import torch
from torch import Tensor

from sheafprop.kernels.rows import take_rows
from sheafprop.nn.graph_input import check_result, from_sections, to_sections, with_free
from sheafprop.nn.sheaf_conv import SheafConv
from sheafprop.nn.traced import TracedPropagation
from sheafprop.sheaf.plan import Normalization, PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.spectrum import upper_bound


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


class SheafDiffusion(SheafConv):
    r"""The sheaf heat equation from "Feature Propagation on Knowledge Graphs Using Cellular
    Sheaves" (Cobb and Gebhart), solved at a finite time without time stepping.

    .. math::
        \dot x_U = - M^+ \left( L x - \delta^* W b \right)_U - a \left( x_U - x_U(0) \right),

    whose solution is :math:`x(T) - x^* = e^{-T (\tilde L + a)} (x(0) - x^*)` for the limit
    :math:`x^*`. The exponential is a Chebyshev expansion of about
    :math:`\sqrt{2 T \ln(4 / \epsilon)}` operator applications, exact to :math:`\epsilon` in the
    :math:`M`-norm relative to :math:`x(0) - x^*`. :math:`k` Euler steps of size :math:`h`
    approximate the time :math:`T = k h`.

    The layer has no parameters; its :meth:`propagate` is one Euler step. Message hooks and PyG's
    explainers receive the messages of every operator application. With a normalization
    ``torch.compile(fullgraph=True)`` and ``torch.export`` unroll the expansion; without one,
    compiling breaks the graph around the layer.

    Args:
        diffusion_time (float): :math:`T \ge 0`.
        normalization (str, optional): :math:`M`: ``"block"``, ``"degree"`` or None, as in
            :class:`SheafConv`. (default: ``"block"``)
        teleport (float): :math:`a \ge 0`. (default: ``0.0``)
        eps (float, optional): :math:`\epsilon`; None for 1e-12 in double and 1e-6 in single
            precision. (default: None)
        **kwargs: ``cached``, and further arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **x:** :math:`(N, F)`, or :math:`(B, N, F)` for :math:`B` sections
        - **output:** as **x**; number type as in :class:`SheafConv`

    Raises:
        ValueError: If the inputs do not match or are not finite.
        DivergenceError: If the result is too large for its number type.
    """

    _settings: ClassVar[dict[str, Any]] = {
        "diffusion_time": ...,
        "normalization": ...,
        "teleport": 0.0,
        "eps": None,
        "step_size": 0.9,
        "cached": False,
    }

    def __init__(
        self,
        diffusion_time: float,
        *,
        normalization: Normalization = "block",
        teleport: float = 0.0,
        eps: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(normalization=normalization, **kwargs)
        if not 0 <= diffusion_time < math.inf:
            raise ValueError(
                f"'diffusion_time' must be finite and not negative (got {diffusion_time})"
            )
        if not 0 <= teleport < math.inf:
            raise ValueError(f"'teleport' must be finite and not negative (got {teleport})")
        if eps is not None and not 0 < eps < 1:
            raise ValueError(f"'eps' must lie between 0 and 1 (got {eps})")
        self.diffusion_time = diffusion_time
        self.teleport = teleport
        self.eps = eps

    def _is_traced(self, sheaf: RelationSheaf) -> bool:
        # Without a normalization the bound on the spectrum is a value.
        return self.normalization is not None and super()._is_traced(sheaf)

    def _apply_traced(self, traced: TracedPropagation, x: Tensor) -> Tensor:
        # Numbers of the layer, on which the number of steps depends: a compiler may not leave them
        # open, as it does once it has seen layers with several.
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        time = guard_scalar(self.diffusion_time * (1 + self.teleport))
        eps = guard_scalar(self.eps or expansion_error(x.dtype))
        moved = affine_chebyshev(
            lambda y: traced.step_with_teleport(y, x, 1.0, self.teleport),
            x,
            exponential_weights(time, eps),
        )
        return traced.keep_boundary(x, moved)

    def _apply_plan(self, plan: PropagationPlan, x: Tensor) -> Tensor:
        sections = to_sections(x)
        constant, first = plan.constant(sections), take_rows(sections, 0, plan.free_index)
        # The step that maps the spectrum [a, a + bound] into [-1, 1].
        rate = upper_bound(plan) / 2 + self.teleport
        if rate == 0:
            check_result(x, x)
            return x.clone()

        def step(free: Tensor) -> Tensor:
            moved = self._step_free(plan, sections, free, constant, 1 / rate)
            return moved - self.teleport / rate * (free - first) if self.teleport else moved

        eps = self.eps or expansion_error(x.dtype)
        moved = affine_chebyshev(step, first, exponential_weights(self.diffusion_time * rate, eps))
        out = from_sections(with_free(sections, plan, plan.keep_isolated(moved, first)), x)
        check_result(out, x)
        return out
