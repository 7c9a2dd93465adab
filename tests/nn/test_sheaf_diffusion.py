"""Finite diffusion times against matrix exponentials and against the steps themselves."""

import math

import numpy as np
import pytest
import torch

from sheafprop.nn import SheafDiffusion, SheafPropagation
from sheafprop.nn.diffusion_time import exponential_weights, power_weights
from sheafprop.sheaf import IdentitySheaf
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, dense_limit, dense_system, make_case, pinv_sqrt


def options(case):
    return dict(edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)


@pytest.mark.parametrize("eps", [1e-3, 1e-8, 1e-12])
@pytest.mark.parametrize("count", [1, 2, 7, 128, 1001, 100_000])
def test_weights_of_a_power(count, eps):
    weights = power_weights(count, eps)
    assert sum(weights) == pytest.approx(1, abs=1e-14)
    assert len(weights) - 1 <= 2 * math.sqrt(2 * count * math.log(2 / eps))
    s = np.cos(np.linspace(0, np.pi, 997))
    found = np.polynomial.chebyshev.chebval(s, weights)
    assert np.abs(found - s**count).max() <= eps + 1e-13


@pytest.mark.parametrize("eps", [1e-3, 1e-12])
@pytest.mark.parametrize("time", [0.0, 0.1, 3.0, 200.0, 1e5])
def test_weights_of_an_exponential(time, eps):
    weights = exponential_weights(time, eps)
    s = np.cos(np.linspace(0, np.pi, 997))
    found = np.polynomial.chebyshev.chebval(s, weights)
    assert np.abs(found - np.exp(-time * (1 - s))).max() <= eps + 1e-13
    assert len(weights) <= 10 + 2 * math.sqrt(2 * time * math.log(4 / eps)) + 2 * math.log(4 / eps)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("normalization", ["block", "degree", None])
@pytest.mark.parametrize("teleport", [0.0, 0.3])
def test_diffusion_is_the_matrix_exponential(kind, normalization, teleport):
    case = make_case(kind, 2)
    l_uu, metric, gradient, free = dense_system(case, normalization)
    root = torch.block_diag(
        *[pinv_sqrt(metric[i : i + WIDTH, i : i + WIDTH]) for i in range(0, metric.shape[0], WIDTH)]
    )
    values, vectors = torch.linalg.eigh(root @ l_uu @ root)
    for time in (0.0, 0.7, 30.0):
        rates = values.clamp_min(0) + teleport
        # The integral of exp(-t rate) from 0 to the time.
        done = torch.where(rates > 1e-12, -torch.expm1(-time * rates) / rates, time)
        moved = root @ vectors @ (done * (vectors.mH @ (root @ gradient)))
        expected = case.x.flatten().clone()
        expected[free] -= moved
        layer = SheafDiffusion(time, normalization=normalization, teleport=teleport)
        out = layer(case.x, *case.graph, **options(case))
        assert torch.allclose(out.flatten(), expected, atol=1e-6)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize(
    ("normalization", "h", "teleport"),
    [("block", 0.9, 0.0), ("block", 1.0, 0.0), ("degree", 0.7, 0.0), ("block", 0.9, 0.2)],
)
def test_long_runs_are_equal_to_their_steps(kind, normalization, h, teleport):
    case = make_case(kind, 3)
    settings = dict(step_size=h, normalization=normalization, teleport=teleport)
    for count in (128, 301):
        fast = SheafPropagation(count, **settings)
        slow = SheafPropagation(count, accelerate=False, **settings)
        ours = fast(case.x, *case.graph, **options(case))
        theirs = slow(case.x, *case.graph, **options(case))
        assert torch.allclose(ours, theirs, atol=1e-10)
        assert torch.equal(ours[case.boundary_mask], case.x[case.boundary_mask])


def test_long_runs_of_a_singular_case_and_without_normalization():
    case = make_case("dense, shared", 1, boundary=0.0)
    top = float(torch.linalg.eigvalsh(dense_system(case, None)[0])[-1])
    for settings in (dict(), dict(normalization=None, step_size=0.5 / top)):
        fast = SheafPropagation(400, **settings)(case.x, *case.graph, **options(case))
        slow = SheafPropagation(400, accelerate=False, **settings)(
            case.x, *case.graph, **options(case)
        )
        assert torch.allclose(fast, slow, atol=1e-10)


def test_number_of_operator_applications(monkeypatch):
    case = make_case("identity")
    layer = SheafPropagation(5000)
    plan = layer.plan(case.x, *case.graph, **options(case))
    calls = []
    step = plan.step
    monkeypatch.setattr(plan, "step", lambda *a: calls.append(1) or step(*a))
    expected = SheafPropagation(5000, accelerate=False)(case.x, *case.graph, **options(case))
    out = layer(case.x, *case.graph, plan=plan)
    assert torch.allclose(out, expected, atol=1e-11)
    assert 0 < len(calls) <= 2 * math.sqrt(2 * 5000 * math.log(2 / 1e-12))
    calls.clear()
    # A curve of counts leaps where they lie far apart only.
    for count, _ in layer.trajectory(plan, case.x.unsqueeze(1), [10, 20, 5000]):
        if count == 20:
            assert len(calls) == 20
    assert len(calls) < 1000
    calls.clear()
    SheafPropagation(200, tol=1e-30)(case.x, *case.graph, plan=plan)
    assert len(calls) > 100


def test_gradients_of_long_runs():
    case = make_case("diagonal, unitary", 2)
    found = []
    for accelerate in (True, False):
        x = case.x.clone().requires_grad_()
        layer = SheafPropagation(200, accelerate=accelerate)
        out = layer(x, *case.graph, **options(case))
        found.append(torch.autograd.grad(out.abs().sum(), x)[0])
    assert torch.allclose(*found, atol=1e-9)


def test_long_times_reach_the_limit_and_single_precision_holds():
    case = make_case("identity", 4, num_edges=60)
    out = SheafDiffusion(2000.0)(case.x, *case.graph, **options(case))
    assert torch.allclose(out, dense_limit(case, "block"), atol=1e-8)
    sheaf = IdentitySheaf(case.sheaf.translation.float())
    single = SheafDiffusion(30.0)(
        case.x.float(), case.edge_index, case.edge_type, sheaf, **options(case)
    )
    double = SheafDiffusion(30.0)(case.x, *case.graph, **options(case))
    assert torch.allclose(single.double(), double, atol=1e-4)


def test_settings():
    for arguments, message in (
        (dict(diffusion_time=-1.0), "diffusion_time"),
        (dict(diffusion_time=math.inf), "diffusion_time"),
        (dict(diffusion_time=1.0, teleport=-1.0), "teleport"),
        (dict(diffusion_time=1.0, eps=0.0), "eps"),
    ):
        with pytest.raises(ValueError, match=message):
            SheafDiffusion(**arguments)
