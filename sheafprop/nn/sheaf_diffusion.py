import math
from typing import Any, ClassVar

from torch import Tensor

from sheafprop.kernels.rows import take_rows
from sheafprop.nn.diffusion_time import affine_chebyshev, expansion_error, exponential_weights
from sheafprop.nn.features import check_result, from_sections, to_sections, with_free
from sheafprop.nn.sheaf_conv import SheafConv
from sheafprop.nn.traced import TracedPropagation
from sheafprop.sheaf.plan import Normalization, PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.spectrum import upper_bound


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
