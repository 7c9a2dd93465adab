import itertools

import pytest
import torch

from sheafprop.nn.solvers import SOLVERS, LinearSystem
from sheafprop.nn.solvers.iterative import solve_cg, solve_chebyshev, solve_euler
from sheafprop.sheaf import IdentitySheaf, PropagationPlan
from sheafprop.sheaf.spectrum import ritz_bounds
from tests.nn.solvers.cases import system_of


@pytest.mark.parametrize("teleport", [0.0, 0.3])
def test_equals_the_dense_solution(teleport):
    plan, rhs = system_of("unitary", "power", 40, 0.2)
    system = LinearSystem(plan, teleport)
    solution = solve_chebyshev(system, rhs, tol=1e-11, max_iterations=5000)
    assert solution.converged
    assert solution.iterations == system.applications
    image = LinearSystem(plan, teleport).apply(solution.correction)
    assert torch.allclose(image, rhs, atol=1e-9)


def test_chebyshev_has_nothing_to_do_where_the_operator_is_zero():
    # Without edges the operator is zero; no step can be taken towards any right-hand side.
    none = torch.zeros(2, 0, dtype=torch.long)
    plan = PropagationPlan(
        none, none[0], IdentitySheaf(relations=1), 3, normalization=None, dtype=torch.float64
    )
    solution = SOLVERS["chebyshev"](
        LinearSystem(plan), torch.ones(3, 1, 2).double(), tol=1e-5, max_iterations=10
    )
    assert not solution.converged
    assert (solution.correction == 0).all()
    assert ritz_bounds([], [], 1e-16) == (0, 0)


def test_each_iterate_is_a_step_of_the_scheme():
    plan, rhs = system_of("dense", "tree", 30, 0.2)
    system = LinearSystem(plan, 0.2)
    z = torch.zeros_like(rhs)
    for steps in range(1, 4):
        image = plan.precondition(rhs - plan.laplacian(z) - 0.2 * plan.apply_metric(z))
        z = z + 2 * 0.7 / system.upper * image
        solution = solve_euler(
            LinearSystem(plan, 0.2), rhs, tol=1e-12, max_iterations=steps, step_size=0.7
        )
        assert torch.allclose(solution.correction, z, atol=1e-12)
        assert (solution.iterations, solution.converged) == (steps, False)


def test_a_tolerance_ends_the_run():
    plan, rhs = system_of("identity", "power", 30, 0.3)
    solution = solve_euler(LinearSystem(plan), rhs, tol=1e-3, max_iterations=10_000)
    assert solution.converged
    assert solution.relative_residual <= 1e-3
    assert solution.iterations < 10_000


@pytest.mark.parametrize("kind", ["identity", "unitary", "dense"])
def test_the_residual_never_rises(kind):
    plan, rhs = system_of(kind, "tree", 60, 0.1)
    found = []
    for steps in range(1, 12):
        solution = solve_cg(LinearSystem(plan), rhs, tol=1e-14, max_iterations=steps)
        residual = rhs - plan.laplacian(solution.correction)
        found.append(LinearSystem(plan).norm(residual))
    for before, after in itertools.pairwise(found):
        assert after <= before * (1 + 1e-9)
    assert found[-1] < found[0]


def test_columns_rest_when_they_are_done():
    plan, rhs = system_of("unitary", "power", 200, 0.1)
    rhs = rhs * torch.tensor([1.0, 1e-9, 0.0])
    solution = SOLVERS["cg"](LinearSystem(plan), rhs, tol=1e-10, max_iterations=1000)
    assert solution.converged
    assert (solution.correction[..., 2] == 0).all()
    assert torch.isfinite(torch.view_as_real(solution.correction)).all()
