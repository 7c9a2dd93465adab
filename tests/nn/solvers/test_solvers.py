"""Solvers on graphs of some size: numbers of applications, and scipy as the other opinion."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch

from sheafprop.nn.solvers import SOLVERS, LinearSystem
from sheafprop.nn.solvers.kernel import is_singular, known_regular
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, PropagationPlan
from sheafprop.sheaf.spectrum import ritz_bounds
from tests.sheaf_cases import NUM_NODES, SHEAF_KINDS, make_case

RELATIONS, WIDTH = 5, 3


def random_graph(shape, n, seed=0):
    g = torch.Generator().manual_seed(seed)
    if shape == "tree":
        parent = (torch.rand(n - 1, generator=g) * torch.arange(1, n)).long()
        edge_index = torch.stack([parent, torch.arange(1, n)])
    elif shape == "path":
        path = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
        edge_index = torch.cat([path, torch.randint(0, n, (2, n // 50), generator=g)], dim=1)
    else:
        edge_index = (n * torch.rand(2, 4 * n, generator=g) ** 2.5).long()
    edge_type = torch.randint(0, RELATIONS, (edge_index.shape[1],), generator=g)
    return edge_index, edge_type


def random_sheaf(kind, seed=0):
    g = torch.Generator().manual_seed(seed)

    def real(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    if kind == "identity":
        return IdentitySheaf(real(RELATIONS, WIDTH))
    if kind == "unitary":
        return DiagonalSheaf(torch.polar(torch.ones(RELATIONS, WIDTH).double(), real(5, 3)))
    return DenseSheaf(real(RELATIONS, WIDTH, WIDTH), real(RELATIONS, WIDTH, WIDTH))


def system_of(kind, shape, n, known, seed=0):
    edge_index, edge_type = random_graph(shape, n, seed)
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(n, generator=g) < known
    sheaf = random_sheaf(kind, seed)
    plan = PropagationPlan(edge_index, edge_type, sheaf, n, boundary_mask=mask, dtype=sheaf.dtype)
    x = torch.randn(n, 1, WIDTH, generator=g, dtype=sheaf.dtype)
    return plan, plan.gradient(x[plan.free_index], plan.constant(x))


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


@pytest.mark.parametrize("normalization", ["block", "degree", None])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_products_with_preconditioned_residuals(kind, normalization):
    case = make_case(kind, 2, boundary=0.3)
    plan = PropagationPlan(
        *case.graph, NUM_NODES, edge_weight=case.edge_weight, boundary_mask=case.boundary_mask,
        normalization=normalization, dtype=case.x.dtype,
    )  # fmt: skip
    for teleport in (0.0, 0.3):
        system = LinearSystem(plan, teleport)
        residual = plan.project(case.x.unsqueeze(1)[plan.free_index])
        image = system.precondition(residual)
        expected = system.apply(image)
        assert torch.allclose(system.apply_preconditioned(image, residual), expected, atol=1e-9)
        assert system.applications == 2


def test_columns_rest_when_they_are_done():
    plan, rhs = system_of("unitary", "power", 200, 0.1)
    rhs = rhs * torch.tensor([1.0, 1e-9, 0.0])
    solution = SOLVERS["cg"](LinearSystem(plan), rhs, tol=1e-10, max_iterations=1000)
    assert solution.converged
    assert (solution.correction[..., 2] == 0).all()
    assert torch.isfinite(torch.view_as_real(solution.correction)).all()


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_nothing_to_do(name):
    plan, rhs = system_of("identity", "tree", 20, 0.1)
    solution = SOLVERS[name](LinearSystem(plan), 0 * rhs, tol=1e-5, max_iterations=10)
    assert solution.converged
    assert (solution.correction == 0).all()
    assert (solution.iterations, solution.relative_residual) == (0, 0.0)


def test_direct_refuses_what_would_fill_memory():
    sheaf = random_sheaf("dense")
    edge_index, edge_type = random_graph("power", 2000)
    plan = PropagationPlan(edge_index, edge_type, sheaf, 2000, dtype=torch.float64)
    rhs = plan.laplacian(torch.randn(2000, 1, WIDTH, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"6000 rows.*solver='cg'"):
        SOLVERS["direct"](LinearSystem(plan), rhs, tol=1e-5, max_iterations=1)
    edge_index, edge_type = random_graph("power", 30_000)
    plan = PropagationPlan(
        edge_index, edge_type, IdentitySheaf(relations=RELATIONS), 30_000, dtype=torch.float64
    )
    rhs = plan.laplacian(torch.randn(30_000, 1, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"30000 rows.*solver='cg'"):
        SOLVERS["direct"](LinearSystem(plan), rhs, tol=1e-5, max_iterations=1)
    # A tree of that size factors at once.
    edge_index, edge_type = random_graph("tree", 30_000)
    plan = PropagationPlan(
        edge_index, edge_type, IdentitySheaf(relations=RELATIONS), 30_000, dtype=torch.float64
    )
    rhs = plan.laplacian(torch.randn(30_000, 1, 1, dtype=torch.float64))
    assert SOLVERS["direct"](LinearSystem(plan), rhs, tol=1e-8, max_iterations=1).converged


def test_singular_operators_are_recognised_at_any_size():
    for known in (0.0, 0.1):
        plan, _ = system_of("identity", "path", 300, known)
        assert is_singular(plan, WIDTH) == (known == 0) == (not known_regular(plan))
        # Unitary maps on a tree can be undone vertex by vertex: singular as the identity is.
        plan, _ = system_of("unitary", "tree", 300, known)
        assert is_singular(plan, WIDTH) == (known == 0)
    plan, _ = system_of("unitary", "power", 300, 0.0)
    assert not is_singular(plan, WIDTH)


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
