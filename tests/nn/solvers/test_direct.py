"""The factorising solver where eigenvalues are tiny or zero, against exact rational arithmetic."""

import dataclasses
import math
import warnings
from fractions import Fraction

import pytest
import torch

from sheafprop.nn import HarmonicExtension, SheafPropagation
from sheafprop.nn.solvers import SOLVERS, LinearSystem
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, PropagationPlan
from tests.nn.solvers.cases import RELATIONS, WIDTH, random_graph, random_sheaf
from tests.sheaf_cases import make_case

# Two triangles joined by one triple, whose weight is the case; vertex 0 may be known.
EDGE_INDEX = torch.tensor([[0, 1, 2, 3, 4, 5, 2], [1, 2, 0, 4, 5, 3, 3]])
EDGE_TYPE = torch.zeros(7, dtype=torch.long)


def sheaf_of(kind, b):
    ones = torch.ones(1, 2, dtype=torch.float64)
    return {
        "identity": IdentitySheaf(b),
        "diagonal": DiagonalSheaf(ones, translation=b),
        "unitary": DiagonalSheaf(torch.complex(ones, 0 * ones), translation=b),
        "dense": DenseSheaf(torch.diag_embed(2 * ones), torch.diag_embed(2 * ones), 2 * b),
    }[kind]


def exact_limit(x, b, weight):
    """The free vertices' values with vertex 0 known, solved in fractions."""
    n, width = x.shape
    matrix = [[Fraction(0)] * n for _ in range(n)]
    right = [[Fraction(0)] * width for _ in range(n)]
    for (h, t), w in zip(EDGE_INDEX.T.tolist(), weight.tolist(), strict=True):
        w = Fraction(w)
        matrix[h][h] += w
        matrix[t][t] += w
        matrix[h][t] -= w
        matrix[t][h] -= w
        for c in range(width):
            right[t][c] += w * Fraction(float(b[0, c]))
            right[h][c] -= w * Fraction(float(b[0, c]))
    rows = [
        [matrix[i][j] for j in range(1, n)]
        + [right[i][c] - matrix[i][0] * Fraction(float(x[0, c])) for c in range(width)]
        for i in range(1, n)
    ]
    for i, row in enumerate(rows):
        rows[i] = row = [value / row[i] for value in row]
        for j, other in enumerate(rows):
            if j != i:
                rows[j] = [a - other[i] * q for a, q in zip(other, row, strict=True)]
    return torch.tensor([[float(v) for v in row[n - 1 :]] for row in rows], dtype=torch.float64)


def solve(x, sheaf, weight, mask, **settings):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        x = x.to(sheaf.dtype or x.dtype)
        layer = HarmonicExtension("direct", **({"tol": 1e-10} | settings))
        out, result = layer(
            x,
            EDGE_INDEX,
            EDGE_TYPE,
            sheaf,
            edge_weight=weight,
            boundary_mask=mask,
            return_result=True,
        )
    return out, result, [str(w.message) for w in found]


@pytest.mark.parametrize("kind", ["identity", "diagonal", "unitary", "dense"])
@pytest.mark.parametrize("normalization", ["block", "degree", None])
@pytest.mark.parametrize("exponent", [0, -3, -6, -9, -11, -13, -15, -17, -30])
def test_tiny_eigenvalues_are_solved_or_reported(kind, normalization, exponent):
    if kind == "dense" and exponent < -20:
        pytest.skip("only a graph, not a number, can tell 1e-30 from zero")
    g = torch.Generator().manual_seed(3 - exponent)
    x = torch.randn(6, 2, generator=g, dtype=torch.float64)
    weight = torch.ones(7, dtype=torch.float64)
    weight[6] = 10.0**exponent
    mask = torch.arange(6) == 0
    for b in (torch.zeros(1, 2).double(), torch.randn(1, 2, generator=g, dtype=torch.float64)):
        out, result, messages = solve(
            x, sheaf_of(kind, b), weight, mask, normalization=normalization
        )
        expected = exact_limit(x, b, weight)
        error = float((out[1:] - expected).abs().max() / expected.abs().max())
        if exponent >= -6 or (exponent >= -9 and not b.any()):
            assert result.converged
        if result.converged:
            assert error < 1e-6
            assert not messages
        else:
            assert any("raise the smallest edge weights" in m for m in messages)


@pytest.mark.parametrize("kind", ["identity", "diagonal", "unitary"])
def test_the_light_edge_costs_no_digits_without_translations(kind):
    x = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight = torch.ones(7, dtype=torch.float64)
    weight[6] = 1e-14
    out, result, _ = solve(
        x, sheaf_of(kind, torch.zeros(1, 2).double()), weight, torch.arange(6) == 0, tol=1e-12
    )
    assert result.converged
    assert torch.allclose(out, x[0].to(out).expand_as(out), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["identity", "diagonal", "unitary", "dense"])
@pytest.mark.parametrize("light", [1.0, 1e-3, 0.0])
def test_exactly_singular_systems_keep_the_weighted_mean(kind, light):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, generator=g, dtype=torch.float64)
    weight = torch.tensor([1.0, 2, 3, 1, 1, 0.5, light], dtype=torch.float64)
    sheaf = sheaf_of(kind, torch.zeros(1, 2).double())
    out, result, messages = solve(x, sheaf, weight, torch.zeros(6, dtype=torch.bool))
    assert result.converged
    assert not messages
    degree = torch.zeros(6).double()
    degree = degree.index_add(0, EDGE_INDEX[0], weight).index_add(0, EDGE_INDEX[1], weight)
    parts = [range(6)] if light else [range(3), range(3, 6)]
    for part in map(list, parts):
        mean = (degree[part, None] * x[part]).sum(0) / degree[part].sum()
        assert torch.allclose(out[part].real.double(), mean.expand(len(part), 2), atol=1e-12)


@pytest.mark.parametrize("turn", [1e-3, 1e-5, 1e-7, 1e-9, 0.0])
def test_nearly_consistent_phases(turn):
    # Phases around the triangle add up to a small turn: the smallest eigenvalue is its square.
    phase = torch.full((1, 2), 2 * math.pi / 3 + turn / 3, dtype=torch.float64)
    sheaf = DiagonalSheaf(torch.polar(torch.ones_like(phase), phase))
    x = torch.randn(6, 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    weight = torch.ones(7, dtype=torch.float64)
    weight[6] = 0
    out, result, messages = solve(x, sheaf, weight, torch.zeros(6, dtype=torch.bool))
    turned = torch.polar(torch.ones(2).double(), phase[0])
    kernel = torch.stack([torch.ones(2).cdouble(), turned, turned**2])
    kept = kernel * (kernel.conj() * x[:3]).mean(0)
    if turn == 0:
        assert torch.allclose(out[:3], kept, atol=1e-10)
        assert result.converged
    elif result.converged:
        # Without boundary the limit of a nonsingular system is zero.
        assert out[:3].abs().max() < 1e-6
    else:
        assert any("too small for double precision" in m for m in messages)
    if turn >= 1e-3:
        assert result.converged


def test_gains_beyond_the_range_of_numbers():
    # A path on which every step doubles or halves: entries of the kernel vector reach 2^±1200.
    n = 2401
    head = torch.arange(n - 1)
    edges = torch.stack([head, head + 1])
    kinds = (head >= n // 2).long()
    sheaf = DiagonalSheaf(torch.tensor([[2.0], [0.5]], dtype=torch.float64))
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, generator=g, dtype=torch.float64)
    layer = HarmonicExtension("direct", tol=1e-9)
    out = layer(x, edges, kinds, sheaf)
    power = torch.exp2(-(torch.arange(n, dtype=torch.float64) - n // 2).abs())
    degree = torch.ones(n, dtype=torch.float64)
    degree[:-1] += sheaf.head[kinds].flatten() ** 2
    degree[0] -= 1
    degree[-1] = 1
    mean = (degree * power * x.flatten()).sum() / (degree * power**2).sum()
    assert torch.allclose(out.flatten(), mean * power, atol=1e-9)


def test_auto_leaves_to_cg_what_a_factorisation_cannot_resolve():
    x = torch.randn(6, 2, dtype=torch.float64)
    weight = torch.ones(7, dtype=torch.float64)
    weight[6] = 1e-16
    b = torch.ones(1, 2, dtype=torch.float64)
    mask = torch.arange(6) == 0
    graph = (EDGE_INDEX, EDGE_TYPE, IdentitySheaf(b))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
        _, result = HarmonicExtension(tol=1e-6)(
            x, *graph, edge_weight=weight, boundary_mask=mask, return_result=True
        )
    assert (result.solver, result.converged) == ("cg", True)


def test_gradients_through_a_light_edge():
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.ones(7, dtype=torch.float64)
    weight[6] = 1e-6
    mask = torch.arange(6) == 0
    graph = (EDGE_INDEX, EDGE_TYPE, IdentitySheaf(relations=1))
    out = HarmonicExtension("direct", tol=1e-9)(x, *graph, edge_weight=weight, boundary_mask=mask)
    (found,) = torch.autograd.grad(out[5, 0], x)
    expected = torch.zeros_like(x)
    expected[0, 0] = 1
    assert torch.allclose(found, expected, atol=1e-8)
    # Where it is heavy, the unrolled gradient says the same.
    weight[6] = 1
    out = HarmonicExtension("direct", tol=1e-9)(x, *graph, edge_weight=weight, boundary_mask=mask)
    unrolled = SheafPropagation(3000)(x, *graph, edge_weight=weight, boundary_mask=mask)
    ours, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (out, unrolled))
    assert torch.allclose(ours, theirs, atol=1e-8)


@dataclasses.dataclass(frozen=True, eq=False)
class OneNumberForAMap(DiagonalSheaf):
    """Multiples of the identity, held as one number for each relation beside the maps."""

    factor: torch.Tensor | None = None

    def restrict(self, x, edge_type, side):
        return x if side == "tail" else x * self.factor[edge_type].unsqueeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
@pytest.mark.parametrize("translated", [False, True])
def test_a_sheaf_may_hold_tensors_of_any_shape(dtype, translated):
    case = make_case("diagonal, unitary" if dtype.is_complex else "diagonal, singular", 3)
    factor = torch.tensor([1.0, 2.0, 0.5, -1.0]).to(dtype)
    head = factor.unsqueeze(1).expand(4, 3)
    translation = torch.randn(4, WIDTH, dtype=dtype) if translated else None
    plain = DiagonalSheaf(head, None, translation)
    other = OneNumberForAMap(head, None, translation, factor)
    x, graph = torch.randn(12, WIDTH, dtype=dtype), (case.edge_index, case.edge_type)
    layer = HarmonicExtension("direct", tol=1e-4)
    known = dict(boundary_mask=case.boundary_mask)
    out = layer(x.requires_grad_(), *graph, other, **known)
    assert torch.equal(out, layer(x, *graph, plain, **known))
    out.abs().sum().backward()
    assert torch.isfinite(x.grad.abs()).all()


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
