import math
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import Adj

from sheafprop.nn.diffusion_time import affine_chebyshev, expansion_error, exponential_weights
from sheafprop.nn.graph_input import as_edges
from sheafprop.nn.sheaf_conv import (
    SheafConv,
    _check_plan,
    _prepare,
    from_sections,
    to_sections,
    with_free,
)
from sheafprop.sheaf.plan import Normalization, PropagationPlan
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.spectrum import upper_bound


class SheafDiffusion(SheafConv):
    r"""The sheaf heat flow of "Feature Propagation on Knowledge Graphs Using Cellular Sheaves"
    (Cobb and Gebhart) at a finite time, without time steps.

    .. math::
        \dot x_U = - M^+ \left( L x - \delta^* W b \right)_U - a \left( x_U - x_U(0) \right),

    so that the distance to the limit :math:`x^*` is :math:`e^{-T (\tilde L + a)}` times that of the
    start. The exponential is a Chebyshev expansion of about
    :math:`\sqrt{2 T \ln(4 / \epsilon)}` operator applications, exact to :math:`\epsilon` in the
    :math:`M`-norm relative to :math:`x(0) - x^*`. An Euler run of :math:`k` steps of size :math:`h`
    approximates time :math:`T = k h`.

    The layer has no parameters; its :meth:`propagate` is one Euler step.

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
        - **output:** as **x**
    """

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

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        edge_type: Tensor | None,
        sheaf: RelationSheaf,
        *,
        edge_weight: Tensor | None = None,
        boundary_mask: Tensor | None = None,
        plan: PropagationPlan | None = None,
    ) -> Tensor:
        """Diffuses; the arguments are those of :meth:`SheafConv.forward`."""
        edge_index, edge_type = as_edges(edge_index, edge_type)
        x = _prepare(x, sheaf)
        with torch.autocast(x.device.type, enabled=False):
            plan = plan or self.plan(x, edge_index, edge_type, sheaf, edge_weight, boundary_mask)
            _check_plan(plan, x, self.normalization)
            sections = to_sections(x)
            constant, first = plan.constant(sections), sections[plan.free_index]
            # The step that maps the spectrum [a, a + bound] into [-1, 1].
            rate = upper_bound(plan) / 2 + self.teleport
            if rate == 0:
                return x

            def step(free: Tensor) -> Tensor:
                moved = plan.step(free, constant, 1 / rate)
                return moved - self.teleport / rate * (free - first) if self.teleport else moved

            weights = exponential_weights(
                self.diffusion_time * rate, self.eps or expansion_error(x.dtype)
            )
            free = affine_chebyshev(step, first, weights)
            return from_sections(with_free(sections, plan, free), x)

    def __repr__(self) -> str:
        shown = [f"diffusion_time={self.diffusion_time}", f"normalization={self.normalization!r}"]
        if self.teleport:
            shown.append(f"teleport={self.teleport}")
        if self.cached:
            shown.append("cached=True")
        return f"{type(self).__name__}({', '.join(shown)})"
