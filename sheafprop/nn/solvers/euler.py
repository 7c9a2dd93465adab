import torch
from torch import Tensor

from sheafprop.nn.solvers.linear_system import LinearSystem, Solution


def solve_euler(
    system: LinearSystem, rhs: Tensor, *, tol: float, max_iterations: int, step_size: float = 0.9
) -> Solution:
    r"""The paper's explicit Euler scheme, :math:`z \leftarrow z + h M^+ (f - A z)`, run to a
    tolerance.

    The step is a share of the largest safe one: :math:`h = 2 \theta / \Lambda` for the bound
    :math:`\Lambda` on the spectrum, which is :math:`\theta / (1 + a)` under ``"block"``.

    Args:
        system (LinearSystem): The operator.
        rhs (Tensor): :math:`f`, ``[n, s, d]``.
        tol (float): Relative residual to reach.
        max_iterations (int): At most so many operator applications.
        step_size (float): :math:`\theta`, below 1. (default: ``0.9``)
    """
    z, residual = torch.zeros_like(rhs), rhs
    image = system.precondition(residual)
    initial = norm = system.norm_of(residual, image)
    begun, goal = system.applications, system.goal(initial, tol)
    if initial <= goal:
        return Solution(z, 0, 0.0, system.meets(initial, initial, tol))
    while norm > goal and system.applications - begun < max_iterations:
        z = z + 2 * step_size / system.upper * image
        residual = rhs - system.apply(z)
        image = system.precondition(residual)
        norm = system.norm_of(residual, image)
    met = system.meets(norm, initial, tol)
    return Solution(z, system.applications - begun, norm / initial, met)
