"""Finite diffusion times against matrix exponentials."""

import math

import numpy as np
import pytest
import torch

from sheafprop.nn import SheafDiffusion
from sheafprop.nn.sheaf_diffusion import affine_chebyshev, exponential_weights, power_weights
from sheafprop.sheaf import IdentitySheaf
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, dense_limit, dense_system, make_case, pinv_sqrt


def options(case):
    return dict(edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)


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


def test_the_weighted_sum_of_iterates_is_the_power_of_the_map():
    g = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(6, 6, generator=g, dtype=torch.float64))
    matrix = (basis * torch.linspace(-1, 1, 6, dtype=torch.float64)) @ basis.T
    fixed, x = torch.randn(2, 6, generator=g, dtype=torch.float64)
    out = affine_chebyshev(lambda y: fixed + matrix @ (y - fixed), x, power_weights(9, 1e-12))
    expected = fixed + torch.linalg.matrix_power(matrix, 9) @ (x - fixed)
    assert torch.allclose(out, expected, atol=1e-11)
