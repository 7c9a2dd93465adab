"""Solvers side by side: numbers of applications, and scipy as the other opinion."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch

from sheafprop.nn.solvers import SOLVERS, LinearSystem
from tests.nn.solvers.cases import WIDTH, system_of


def applications(name, plan, rhs, tol=1e-5, max_iterations=20_000):
    solution = SOLVERS[name](LinearSystem(plan), rhs, tol=tol, max_iterations=max_iterations)
    assert solution.converged
    residual = rhs - plan.laplacian(solution.correction)
    system = LinearSystem(plan)
    assert system.norm(residual) == pytest.approx(
        solution.relative_residual * system.norm(rhs), rel=1e-6
    )
    assert system.norm(residual) <= tol * system.norm(rhs)
    return solution.iterations


@pytest.mark.parametrize("kind", ["identity", "unitary", "dense"])
@pytest.mark.parametrize("shape", ["power", "tree", "path"])
@pytest.mark.parametrize("known", [0.0, 0.05, 0.25])
def test_krylov_and_chebyshev_never_need_more_than_euler(kind, shape, known):
    plan, rhs = system_of(kind, shape, 40 if kind == "dense" else 200, known)
    # Euler is stopped where its comparison is over.
    ours = {name: applications(name, plan, rhs) for name in ("cg", "chebyshev")}
    most = max(ours.values())
    euler = SOLVERS["euler"](LinearSystem(plan), rhs, tol=1e-5, max_iterations=12 * most)
    assert most <= euler.iterations
    if euler.iterations >= 2000:
        assert euler.iterations >= 10 * most, ours
    elif euler.iterations >= 300:
        assert euler.iterations >= 5 * most, ours


@pytest.mark.parametrize("kind", ["identity", "unitary"])
def test_slow_convergence_is_ten_times_faster(kind):
    plan, rhs = system_of(kind, "path", 1000, 0.0)
    ours = {name: applications(name, plan, rhs) for name in ("cg", "chebyshev")}
    euler = SOLVERS["euler"](LinearSystem(plan), rhs, tol=1e-5, max_iterations=2000)
    assert not euler.converged
    euler = SOLVERS["euler"](
        LinearSystem(plan), rhs, tol=1e-5, max_iterations=10 * max(ours.values())
    )
    assert not euler.converged, ours


def scipy_matrix(plan, d):
    size = plan.num_free * d
    basis = torch.eye(size, dtype=plan.dtype).view(size, plan.num_free, d).transpose(0, 1)
    image = plan.laplacian(basis).transpose(0, 1).reshape(size, size).T
    return scipy.sparse.csc_array(image.numpy())


@pytest.mark.parametrize("kind", ["identity", "unitary", "dense"])
def test_against_scipy(kind):
    plan, rhs = system_of(kind, "power", 150, 0.2)
    flat = rhs.squeeze(1).flatten().numpy()
    # Isolated vertices have empty rows.
    matrix = scipy_matrix(plan, WIDTH)
    rows = np.flatnonzero(abs(matrix).sum(axis=1) > 0)
    part = matrix[rows][:, rows].tocsc()
    expected = np.zeros_like(flat)
    expected[rows] = scipy.sparse.linalg.spsolve(part, flat[rows])
    by_cg, info = scipy.sparse.linalg.cg(part, flat[rows], rtol=1e-12, maxiter=5000)
    assert info == 0
    assert np.allclose(by_cg, expected[rows], atol=1e-6)
    for name in ("cg", "chebyshev", "direct"):
        solution = SOLVERS[name](LinearSystem(plan), rhs, tol=1e-12, max_iterations=5000)
        assert np.allclose(solution.correction.flatten().numpy(), expected, atol=1e-6), name


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_nothing_to_do(name):
    plan, rhs = system_of("identity", "tree", 20, 0.1)
    solution = SOLVERS[name](LinearSystem(plan), 0 * rhs, tol=1e-5, max_iterations=10)
    assert solution.converged
    assert (solution.correction == 0).all()
    assert (solution.iterations, solution.relative_residual) == (0, 0.0)
