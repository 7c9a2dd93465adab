import pytest
import torch

from sheafprop.nn.solvers import SOLVERS, LinearSystem
from sheafprop.nn.solvers.chebyshev import solve_chebyshev
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
