import math

import torch
from torch import Tensor

from sheafprop.nn.solvers.linear_system import LinearSystem, Solution

# Less than one percent gained in so many steps, and in half of the steps made: stagnation.
_PATIENCE = 500


def solve_cg(system: LinearSystem, rhs: Tensor, *, tol: float, max_iterations: int) -> Solution:
    r"""Conjugate gradients, preconditioned by :math:`M^+` (block Jacobi for :math:`M = D`), in the
    form that minimizes the residual.

    Its iterate has the smallest :math:`\|M^{-1/2} (f - A z)\|`, which is what the tolerance
    measures, of all polynomial methods: it never needs more applications than Euler steps or
    Chebyshev, the residual never rises, and rounding in the kernel of :math:`A` does not break it.
    Where the maps act on every coordinate separately, each column has its own step lengths, and
    rests once it is below the tolerance by itself; otherwise each section has. The residual of the
    recurrence is checked against the true one before the result counts as converged; the process
    restarts where they differ and ends when that gains nothing more. Hestenes and Stiefel (1952);
    Stiefel, "Relaxationsmethoden bester Strategie" (1955).

    Args:
        system (LinearSystem): The operator.
        rhs (Tensor): :math:`f`, ``[n, s, d]``, in the range of the operator.
        tol (float): Relative residual to reach.
        max_iterations (int): At most so many operator applications, give or take two.
    """
    begun = system.applications
    z, residual = torch.zeros_like(rhs), rhs
    initial = norm = system.norm(rhs)
    goal = system.goal(initial, tol)
    if initial <= goal:
        return Solution(z, 0, 0.0, system.meets(initial, initial, tol))
    # Below what rounding can resolve, steps would only wander off in the kernel.
    reachable = max(goal, 4 * torch.finfo(rhs.dtype).eps * initial)
    while norm > reachable:
        left = max_iterations - (system.applications - begun)
        if left <= 0:
            break
        candidate = _cycle(system, z, residual, reachable, left)
        fresh = rhs - system.apply(candidate)
        previous, reached = norm, system.norm(fresh)
        if reached < norm:
            z, residual, norm = candidate, fresh, reached
        if not reached < 0.5 * previous:
            break
    met = system.meets(norm, initial, tol)
    return Solution(z, system.applications - begun, norm / initial, met)


def _cycle(
    system: LinearSystem, z: Tensor, residual: Tensor, goal: float, max_iterations: int
) -> Tensor:
    """One run of the recurrences from a true residual."""
    image = system.precondition(residual)
    direction = image
    product = system.apply_preconditioned(image, residual)
    squared, curvature = system.inner((residual, image), (image, product))
    resting = squared * (goal / system.norm_of(residual, image)) ** 2
    checked, checked_at = system.norm_of(residual, image), 0
    for step in range(1, max_iterations + 1):
        steered = system.precondition(product)
        (steepness,) = system.inner((product, steered))
        moves = (squared > resting) & system.resolves(curvature, squared) & (steepness > 0)
        if not bool(moves.any()):
            break
        length = torch.where(moves, curvature / torch.where(moves, steepness, 1), 0)
        z = z + length * direction
        residual = residual - length * product
        # The preconditioner is linear.
        image = image - length * steered
        # The residual without rounding: where it is small, the operator may not be needed again.
        expected = squared - length * curvature
        pairs, mapped = [(residual, image)], None
        if _length(expected) > 2 * goal:
            mapped = system.apply_preconditioned(image, residual)
            pairs.append((image, mapped))
        squared, *more = system.inner(*pairs)
        norm = _length(squared)
        if norm <= goal:
            break
        if step - checked_at > max(_PATIENCE, step // 2):
            if norm > 0.99 * checked:
                break
            checked, checked_at = norm, step
        if mapped is None:
            mapped = system.apply_preconditioned(image, residual)
            more = list(system.inner((image, mapped)))
        fresh = more[0]
        growth = torch.where(moves, fresh / torch.where(moves, curvature, 1), 0)
        direction, product = image + growth * direction, mapped + growth * product
        curvature = fresh
    return z


def _length(squared: Tensor) -> float:
    """The root of the sum of squares."""
    return math.sqrt(max(0.0, float(squared.sum(dtype=torch.float64))))
