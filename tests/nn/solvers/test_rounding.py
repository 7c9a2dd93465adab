"""Singular systems where a residual is at rounding: every solver against the weighted mean."""

import warnings

import pytest
import torch

from sheafprop.nn import HarmonicExtension
from sheafprop.sheaf import DenseSheaf

# Two squares joined by one triple, whose weight is the case.
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 1], [1, 2, 3, 0, 5, 6, 7, 4, 6]])
WIDTH = 3


def unitary(count, g, dtype):
    return torch.linalg.qr(torch.randn(count, WIDTH, WIDTH, generator=g, dtype=dtype)).Q


def singular_case(seed, light, dtype, normalization):
    """Dense maps that agree around every cycle, and the limit, which is then a mean: vertex v
    holds u_v y with the same y everywhere."""
    g = torch.Generator().manual_seed(seed)
    double = torch.promote_types(dtype, torch.float64)
    u, v = unitary(8, g, double), unitary(9, g, double)
    head, tail = EDGES
    sheaf = DenseSheaf((v @ u[head].mH).to(dtype), (v @ u[tail].mH).to(dtype))
    weight = 0.5 + torch.rand(9, generator=g, dtype=torch.float64)
    weight[8] = light
    x = torch.randn(8, WIDTH, generator=g, dtype=double).to(dtype)
    share = torch.zeros(8).double().index_add(0, head, weight).index_add(0, tail, weight)
    share = torch.ones(8).double() if normalization is None else share
    y = (u.mH @ x.to(double).unsqueeze(-1)).squeeze(-1)
    mean = (share.unsqueeze(1) * y).sum(0) / share.sum()
    return x, sheaf, weight, u @ mean


def solve(solver, x, sheaf, weight, normalization, tol):
    layer = HarmonicExtension(solver, tol=tol, normalization=normalization, max_iterations=3000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
        return layer(
            x, EDGES, torch.arange(9), sheaf, edge_weight=weight, return_result=True
        )  # warns if it has not converged


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("normalization", ["block", "degree", None])
@pytest.mark.parametrize("light", [0.3, 2e-4, 3e-6, 5e-8])
def test_a_bridge_of_any_weight_is_solved_directly(dtype, normalization, light):
    for seed in range(4):
        x, sheaf, weight, limit = singular_case(seed, light, dtype, normalization)
        out, result = solve("direct", x, sheaf, weight, normalization, 1e-5)
        assert result.converged
        # Storing the maps and the result rounds each of the WIDTH terms of a row once or twice;
        # stored maps that disagree around a cycle count against the gap, squared.
        eps = torch.finfo(dtype).eps
        bound = (4 * WIDTH * eps + (4 * eps) ** 2 / light) * float(x.abs().max())
        assert float((out - limit).abs().max()) <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("normalization", ["block", "degree", None])
@pytest.mark.parametrize("solver", ["cg", "chebyshev", "direct", "euler"])
def test_the_limit_is_its_own_limit(solver, dtype, normalization):
    """What the right-hand side holds is rounding, part of it in the kernel: no solver may chase
    it there."""
    tol = 1e-5 if dtype == torch.float32 else 1e-10
    for seed, light in enumerate((1.0, 0.3, 2e-4, 3e-6)):
        x, sheaf, weight, limit = singular_case(seed, light, dtype, normalization)
        limit = limit.to(dtype)
        out, result = solve(solver, limit, sheaf, weight, normalization, tol)
        assert result.converged
        # Euler and CG stop within the rounding of four or so products; the direct solver moves
        # the limit by what the maps' rounding moves the kernel.
        eps = torch.finfo(dtype).eps
        bound = (4 * WIDTH * eps + (4 * eps) ** 2 / light) * float(x.abs().max())
        assert float((out - limit).abs().max()) <= bound


@pytest.mark.parametrize("solver", ["cg", "chebyshev"])
@pytest.mark.parametrize("size", [1e-3, 1e-7, 1e-10])
def test_starts_close_to_the_limit_do_not_run_off_in_the_kernel(solver, size):
    """The part of the right-hand side in the kernel is rounding, but no longer small beside the
    rest."""
    for seed in range(4):
        x, sheaf, weight, limit = singular_case(seed, 1.0, torch.float64, "block")
        start = limit + size * x
        layer = HarmonicExtension(solver, tol=1e-10, max_iterations=3000)
        out, result = layer(
            start, EDGES, torch.arange(9), sheaf, edge_weight=weight, return_result=True
        )
        assert result.converged
        # The limit of x is `limit` too, so that of the start is (1 + size) times that.
        assert float((out - (1 + size) * limit).abs().max()) <= 1e-9 * size + 1e-13


@pytest.mark.parametrize("solver", ["cg", "chebyshev", "direct", "euler"])
def test_gradients_of_what_the_kernel_keeps(solver):
    """The mean in the kernel depends on the start alone: its cotangent has no other part, and the
    solves of the gradient get rounding as their right-hand sides."""
    for seed in range(3):
        x, sheaf, weight, limit = singular_case(seed, 0.4, torch.float64, None)
        x.requires_grad_()
        layer = HarmonicExtension(solver, tol=1e-9, normalization=None, max_iterations=3000)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
            out = layer(x, EDGES, torch.arange(9), sheaf, edge_weight=weight)
            out.backward(limit)
        assert float((x.grad - limit).abs().max()) <= 1e-7
