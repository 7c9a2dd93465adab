"""Conjugate gradients, the Euler scheme and Chebyshev semi-iteration, to a tolerance."""

import math

import torch
from torch import Tensor

from sheafprop.nn.solvers.linear_system import LinearSystem, Solution
from sheafprop.sheaf.spectrum import SpectralBounds, ritz_bounds

# Less than one percent gained in so many steps, and in half of the steps made: stagnation.
_PATIENCE = 500
# The opening ends once the smallest Ritz value has moved by less than this share in five steps.
_SETTLED = 0.1
_OPENING = 40
# Steps of a cycle before its rate is compared with the rate that its bounds promise.
_TRIAL = 12
# Cycles without gain, after which rounding is what is left; and steps within a cycle.
_IDLE_CYCLES = 6
_IDLE_STEPS = 100


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
        candidate = _run_cg(system, z, residual, reachable, left)
        fresh = rhs - system.apply(candidate)
        previous, reached = norm, system.norm(fresh)
        if reached < norm:
            z, residual, norm = candidate, fresh, reached
        if not reached < 0.5 * previous:
            break
    met = system.meets(norm, initial, tol)
    return Solution(z, system.applications - begun, norm / initial, met)


def _run_cg(
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


def solve_euler(
    system: LinearSystem, rhs: Tensor, *, tol: float, max_iterations: int, step_size: float = 0.9
) -> Solution:
    r"""The paper's explicit Euler scheme, :math:`z \leftarrow z + h M^+ (f - A z)`, run to a
    tolerance.

    The step is a share of the largest safe one: :math:`h = 2 \theta / \Lambda` for the bound
    :math:`\Lambda` on the spectrum, which is :math:`\theta / (1 + a)` under ``"block"``.

    Args:
        system, rhs, tol, max_iterations: As in :func:`solve_cg`.
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


def solve_chebyshev(
    system: LinearSystem, rhs: Tensor, *, tol: float, max_iterations: int
) -> Solution:
    r"""Chebyshev semi-iteration with Lanczos bounds, preconditioned by :math:`M^+`.

    The first steps are a Lanczos process in the form of conjugate gradients from the right-hand
    side itself: its Ritz values bound the part of the spectrum that matters and never see the
    kernel, and its iterate is not wasted. From there the Chebyshev recurrence needs no scalar
    products for its steps. A lower bound that is too large shows in a rate slower than promised,
    from which the smallest eigenvalue is estimated anew (Hageman and Young, "Applied Iterative
    Methods", chapter 5); an upper bound that is too small shows in growth, and is then replaced by
    the bound that always holds.

    The arguments are those of :func:`solve_cg`.
    """
    begun = system.applications
    initial = system.norm(rhs)
    goal = system.goal(initial, tol)
    if initial <= goal:
        return Solution(torch.zeros_like(rhs), 0, 0.0, system.meets(initial, initial, tol))
    z, bounds = _opening(system, rhs, goal, max_iterations)
    residual = rhs - system.apply(z)
    norm = system.norm(residual)
    if norm > initial:
        z, residual, norm = torch.zeros_like(rhs), rhs, initial
    best, best_norm, idle = z, norm, 0
    # Nothing can be done where the operator does not see the right-hand side.
    while bounds.upper > 0 and norm > goal and idle < _IDLE_CYCLES:
        left = max_iterations - (system.applications - begun)
        if left <= 0:
            break
        z, bounds = _run_chebyshev(system, best, residual, bounds, goal, left)
        fresh = rhs - system.apply(z)
        norm = system.norm(fresh)
        idle = 0 if norm < 0.5 * best_norm else idle + 1
        if norm < best_norm:
            best, best_norm, residual = z, norm, fresh
    met = system.meets(best_norm, initial, tol)
    return Solution(best, system.applications - begun, best_norm / initial, met)


def _opening(
    system: LinearSystem, rhs: Tensor, goal: float, max_iterations: int
) -> tuple[Tensor, SpectralBounds]:
    """Conjugate gradients with one step length for all columns, and their Ritz values."""
    z, residual = torch.zeros_like(rhs), rhs
    direction = image = system.precondition(residual)
    squared = system.norm_of(residual, image) ** 2
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    length = growth = 0.0
    lower = math.inf
    eps = torch.finfo(rhs.dtype).eps
    for step in range(1, min(_OPENING, max_iterations) + 1):
        product = system.apply(direction)
        curvature = float(system.inner((direction, product))[0].sum())
        if not curvature > 0:
            break
        diagonal.append(curvature / squared + (growth / length if length else 0.0))
        length = squared / curvature
        z, residual = z + length * direction, residual - length * product
        image = system.precondition(residual)
        fresh = system.norm_of(residual, image) ** 2
        growth = fresh / squared
        off_diagonal.append(math.sqrt(growth) / length)
        direction, squared = image + growth * direction, fresh
        if math.sqrt(squared) <= goal:
            break
        if step % 5 == 0:
            last, lower = lower, ritz_bounds(diagonal, off_diagonal, eps).lower
            if lower > (1 - _SETTLED) * last:
                break
    ritz = ritz_bounds(diagonal, off_diagonal, eps)
    lower = max(ritz.lower, system.teleport)
    upper = max(min(1.05 * ritz.upper, system.upper), 1.01 * lower)
    return z, SpectralBounds(lower or 1e-3 * upper, upper)


def _run_chebyshev(
    system: LinearSystem,
    start: Tensor,
    residual: Tensor,
    bounds: SpectralBounds,
    goal: float,
    max_iterations: int,
) -> tuple[Tensor, SpectralBounds]:
    """The recurrence with fixed bounds, until it is done or the bounds prove wrong."""
    lower, upper = bounds
    centre, radius = (upper + lower) / 2, (upper - lower) / 2
    ratio = centre / radius
    promised = math.acosh(ratio)  # minus the logarithm of the rate
    z, rho = start, 1 / ratio
    image = system.precondition(residual)
    initial = system.norm_of(residual, image)
    change = image / centre
    norms = [initial]
    lowest, lowest_at = initial, 0
    for step in range(1, max_iterations + 1):
        z, residual = z + change, residual - system.apply(change)
        image = system.precondition(residual)
        norm = system.norm_of(residual, image)
        if norm <= goal:
            return z, bounds
        if not norm < 100 * initial:
            return start, SpectralBounds(lower, system.upper)
        if norm < lowest:
            lowest, lowest_at = norm, step
        elif step - lowest_at > max(_IDLE_STEPS, step // 2):
            break
        norms.append(norm)
        # T_k(ratio) > 20: from here on a mode below the bounds stands out.
        if step >= _TRIAL and step % 4 == 0 and step * promised > math.log(40):
            half = step // 2
            seen = math.log(max(norms[half], norm) / norm) / (step - half)
            if seen < 0.8 * promised:
                estimate = centre - radius * math.cosh(max(0.0, promised - seen))
                low = max(0.9 * estimate, lower / 8, system.teleport)
                if low < 0.95 * lower:
                    return z, SpectralBounds(low, upper)
        next_rho = 1 / (2 * ratio - rho)
        change = next_rho * rho * change + (2 * next_rho / radius) * image
        rho = next_rho
    return z, bounds
