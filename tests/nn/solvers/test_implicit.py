import pytest
import torch

from sheafprop.nn.solvers import LinearSystem
from sheafprop.nn.solvers.implicit import affine_gradient, implicit_limit, sheaf_tensors
from sheafprop.nn.solvers.iterative import solve_cg
from sheafprop.sheaf import PropagationPlan
from tests.sheaf_cases import NUM_NODES, SHEAF_KINDS, dense_limit, dense_system, make_case


def solve(system, rhs):
    return solve_cg(system, rhs, tol=1e-13, max_iterations=2000)


def plan_of(case):
    return PropagationPlan(
        *case.graph, NUM_NODES, edge_weight=case.edge_weight, boundary_mask=case.boundary_mask,
        dtype=case.x.dtype,
    )  # fmt: skip


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_the_limit_is_the_dense_one_and_ends_the_gradient(kind):
    case = make_case(kind, 4, num_edges=60)
    system, sections = LinearSystem(plan_of(case)), case.x.unsqueeze(1)
    free, solution = implicit_limit(system, sections, solve, regular=False)
    assert solution.converged
    expected = dense_limit(case, "block")[~case.boundary_mask]
    assert torch.allclose(free.squeeze(1), expected, atol=1e-7)
    first = sections[system.plan.free_index]
    left = affine_gradient(system, free, first, system.plan.constant(sections))
    assert float(left.abs().max()) < 1e-7


def test_the_gradient_of_the_features_is_that_of_the_dense_solution():
    case = make_case("dense, pair", 4, num_edges=60)
    x = case.x.clone().requires_grad_()
    system = LinearSystem(plan_of(case), 0.5)
    free, _ = implicit_limit(system, x.unsqueeze(1), solve, regular=True)
    g = torch.Generator().manual_seed(0)
    cotangent = torch.randn(free.shape, dtype=free.dtype, generator=g)
    (found,) = torch.autograd.grad((free * cotangent).sum(), x)
    # x* = x_0 - (L + a M)^-1 (L x_0 + L_UB x_B - c): a M of the start is kept.
    l_uu, metric, _, free_index = dense_system(case, "block")
    kept = torch.linalg.pinv(l_uu + 0.5 * metric, rtol=1e-12, hermitian=True) @ l_uu
    ours = found.flatten()[free_index]
    expected = cotangent.flatten() - kept.mT @ cotangent.flatten()
    assert torch.allclose(ours, expected, atol=1e-8)


def test_a_tensor_given_twice_counts_once():
    assert len(sheaf_tensors(plan_of(make_case("dense, shared")))) == 2
    assert len(sheaf_tensors(plan_of(make_case("dense, pair")))) == 2
    assert sheaf_tensors(plan_of(make_case("identity, untranslated"))) == []
