"""The limit as a differentiable function, without a graph through the iterations."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.kernels.rows import add_rows, take_rows
from sheafprop.nn.solvers.linear_system import LinearSystem, Solution, inner, norm_of, rounding_of
from sheafprop.sheaf.plan import PropagationPlan

Solve = Callable[[LinearSystem, Tensor], Solution]

# Below this share of the cotangent a component in the kernel is the solver's error.
_KERNEL_SHARE = 1e-4


def implicit_limit(
    system: LinearSystem, sections: Tensor, solve: Solve, *, regular: bool
) -> tuple[Tensor, Solution]:
    r"""The limit :math:`x^* = x_0 - A^\# g_0` of the free vertices and what the solver reports.

    Its gradient is implicit. With :math:`u = A^\# v` for the cotangent :math:`v`, one solve with
    the same Hermitian operator, the part of the maps, translations and boundary values is that of
    :math:`-\langle u, g(x^*) \rangle`, one evaluation at the solution. Where :math:`A` is
    singular, the kernel keeps part of the start, and moves with the maps. With the projection
    :math:`p = M^+ v - A^\# A M^+ v` of the cotangent on the kernel within the range of :math:`M`,
    :math:`m` that on the kernel of :math:`M`, and :math:`w = x_0 - x^*`, the derivative of
    :math:`n^* M w = 0` for :math:`n` in the kernel adds

    .. math::
        \langle p, M w \rangle - \langle p, L_{UU} q \rangle - \langle m, M M^+ w \rangle,
        \qquad q = A^\# M w

    and :math:`M p + m` for the start. It holds where the rank is constant nearby; elsewhere the
    limit jumps and has no derivative.

    Args:
        system (LinearSystem): The operator.
        sections (Tensor): All vertices ``[N, s, d]``: start and boundary values.
        solve (callable): Gives :math:`A^\# f` from the system and :math:`f`.
        regular (bool): Whether :math:`A` is known to be nonsingular on the range of :math:`M`.
    """
    report: list[Solution] = []
    free = _Limit.apply(system, solve, regular, report, sections, *sheaf_tensors(system.plan))
    return free, report[0]


def affine_gradient(system: LinearSystem, free: Tensor, first: Tensor, constant: Tensor) -> Tensor:
    r"""Half the gradient, :math:`L_{UU} x - c + a M (x - x_0)`."""
    return system.add_metric(system.plan.gradient(free, constant), free - first)


def sheaf_tensors(plan: PropagationPlan) -> list[Tensor]:
    """The distinct tensors that a plan's operators depend on."""
    return list({id(tensor): tensor for tensor in plan.sheaf.tensors().values()}.values())


def _outside_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(backward)
    def run(ctx: Any, cotangent: Tensor) -> Any:
        with torch.autocast(cotangent.device.type, enabled=False):
            return backward(ctx, cotangent)

    return run


class _Limit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        system: LinearSystem,
        solve: Solve,
        regular: bool,
        report: list[Solution],
        sections: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        plan = system.plan
        first = sections[plan.free_index]
        constant = plan.constant(sections)
        rhs = plan.gradient(first, constant)
        rounding = rounding_of(plan, plan.blocks.apply(first), constant)
        solution = solve(LinearSystem(plan, system.teleport, sections, rounding), rhs)
        report.append(solution)
        free = first - solution.correction
        ctx.system, ctx.solve, ctx.regular = system, solve, regular
        ctx.save_for_backward(sections, free, *tensors)
        return free

    @staticmethod
    @once_differentiable
    @_outside_autocast
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        sections, free, *tensors = ctx.saved_tensors
        plan = ctx.system.plan
        system = LinearSystem(plan, ctx.system.teleport)

        def solve(rhs: Tensor, *terms: Tensor) -> Tensor:
            rounding = rounding_of(plan, *terms)
            return ctx.solve(LinearSystem(plan, system.teleport, rounding=rounding), rhs).correction

        first = sections[plan.free_index]
        moved = first - free
        image = plan.precondition(cotangent)
        whole = ranged = plan.project(cotangent)
        outside = cotangent - ranged
        kernel = None
        if not ctx.regular:
            kernel = image - solve(system.apply(image), plan.blocks.apply(image))
            metric = plan.apply_metric(kernel)
            if norm_of(metric, kernel) > _KERNEL_SHARE * norm_of(ranged, image):
                ranged = ranged - metric
            else:
                kernel = None
        adjoint = solve(ranged, whole)
        inward = None
        if kernel is not None:
            pulled = plan.apply_metric(moved)
            inward = solve(pulled, plan.apply_metric(first), plan.apply_metric(free))

        with torch.enable_grad():
            sections = sections.detach().requires_grad_()
            residual = affine_gradient(
                system,
                free.detach(),
                take_rows(sections, 0, plan.free_index),
                plan.constant(sections),
            )
            total = -_pair(adjoint, residual)
            if kernel is not None and inward is not None:
                total = total + _pair(kernel, plan.apply_metric(moved) - plan.laplacian(inward))
            if bool((outside != 0).any()):
                image = plan.precondition(moved).detach()
                total = total - _pair(outside, plan.apply_metric(image))
            wanted = [
                position
                for position, tensor in enumerate(tensors)
                if ctx.needs_input_grad[5 + position]
            ]
            targets = [sections, *(tensors[position] for position in wanted)]
            found = (
                torch.autograd.grad(total, targets, allow_unused=True, retain_graph=True)
                if total.requires_grad
                else [None] * len(targets)
            )
        start = outside if kernel is None else outside + plan.apply_metric(kernel)
        into_x = torch.zeros_like(sections) if found[0] is None else found[0]
        into_x = add_rows(into_x.detach(), 0, plan.free_index, start)
        into_tensors: list[Tensor | None] = [None] * len(tensors)
        for position, gradient in zip(wanted, found[1:], strict=True):
            into_tensors[position] = gradient
        return None, None, None, None, into_x, *into_tensors


def _pair(a: Tensor, b: Tensor) -> Tensor:
    return inner(a, b, (0, 1, 2)).sum()
