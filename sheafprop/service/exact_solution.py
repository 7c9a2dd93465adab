"""The unique minimum of the energy over free entities, and whether there is one."""

import torch
from torch import Tensor

from sheafprop.errors import DivergenceError
from sheafprop.nn.solvers import SOLVERS, LinearSystem, is_cheap
from sheafprop.service.free_system import FreeSystem
from sheafprop.service.lone_blocks import solve_lone_blocks
from sheafprop.sheaf import DenseSheaf, RelationSheaf

# Relative residual of an exact solution, which is found in double precision; beyond what single
# precision can hold, where vectors are stored so.
_TOL = 1e-12
_SINGLE_TOL = 1e-9
_GOOD = 1e-8
#: Rows of an exact solution that are shorter than this may be rounding: the residual that is
#: accepted, relative to known vectors of about length one.
RESOLVED = _GOOD
_MAX_ITERATIONS = 20_000
# A random vector keeps more than this share of its length where the system has a kernel.
_KERNEL = 1e-5


def solve_exactly(system: FreeSystem, sheaf: RelationSheaf) -> tuple[Tensor, float]:
    r"""The minimum ``[n, s, d]`` of a nonsingular system, and its relative residual.

    Raises:
        DivergenceError: If the solver does not get there.
    """
    known = system.boundary_mask
    head, tail = system.edge_index
    alone = bool((known[head] | known[tail]).all())
    if alone and isinstance(sheaf, DenseSheaf):
        vectors = solve_lone_blocks(system, sheaf)
        if vectors is not None:
            return vectors.to(system.x.dtype), 0.0
    plan = system.plan(sheaf)
    constant = plan.constant(system.x.to(plan.dtype))
    if alone:
        # New entities that meet known ones only: every block stands alone.
        return plan.precondition(constant).to(system.x.dtype), 0.0
    linear = LinearSystem(plan)
    tol = _TOL if system.x.dtype == plan.dtype else _SINGLE_TOL
    solution = SOLVERS["direct" if is_cheap(plan) else "cg"](
        linear, constant, tol=tol, max_iterations=_MAX_ITERATIONS
    )
    if not solution.relative_residual <= _GOOD:
        raise DivergenceError(
            "the exact solution was not reached (relative residual "
            f"{solution.relative_residual:.1g}): give PropagationSettings as 'propagation', which "
            "stop at finite time"
        )
    return solution.correction.to(system.x.dtype), solution.relative_residual


def singular_entities(
    system: FreeSystem, touched: Tensor, component: Tensor, sheaf: RelationSheaf
) -> Tensor:
    """Free entities of ``touched`` components whose system has a kernel, bool ``[N]``.

    A random vector is solved for: what is left of it lies in the kernel, or is out of the solver's
    reach, which is as bad.
    """
    part = system.part(touched)
    plan = part.plan(sheaf)
    generator = torch.Generator().manual_seed(0)
    shape = (plan.num_free, 1, system.x.shape[2])
    probe = torch.randn(shape, generator=generator, dtype=plan.dtype)
    linear = LinearSystem(plan)
    image = linear.apply(probe)
    rest = probe
    if linear.norm(image) > 0:
        solution = SOLVERS["cg"](linear, image, tol=_TOL, max_iterations=_MAX_ITERATIONS)
        rest = probe - solution.correction
    of = component[touched]

    def lengths(values: Tensor) -> Tensor:
        squares = torch.linalg.vector_norm(values.flatten(1), dim=1) ** 2
        return torch.zeros(len(component), dtype=squares.dtype).index_add_(0, of, squares)

    kernel = lengths(rest) > _KERNEL**2 * lengths(probe)
    return kernel[component] & touched
