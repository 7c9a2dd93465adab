import torch

from sheafprop.nn.solvers import LinearSystem
from sheafprop.nn.solvers.euler import solve_euler
from tests.nn.solvers.cases import system_of


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
