import itertools

import pytest
import torch

from sheafprop.nn.solvers import SOLVERS, LinearSystem
from sheafprop.nn.solvers.cg import solve_cg
from tests.nn.solvers.cases import system_of


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
