"""Weights of the Chebyshev expansions of powers and exponentials."""

import math

import numpy as np
import pytest
import torch

from sheafprop.nn.diffusion_time import affine_chebyshev, exponential_weights, power_weights


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
