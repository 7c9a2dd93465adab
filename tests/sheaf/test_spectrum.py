"""Eigenvalue bounds against dense spectra and against graphs whose spectra are known."""

import math

import pytest
import torch

from sheafprop.sheaf import DiagonalSheaf, IdentitySheaf, PropagationPlan, spectrum
from sheafprop.sheaf.spectrum import (
    largest_eigenvalue,
    normalized_matrix,
    reaches_two,
    spectral_bounds,
    upper_bound,
)
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, dense_system, make_case, pinv_sqrt

NORMALIZATIONS = ("block", "degree", None)


def plan_of(case, normalization):
    return PropagationPlan(
        *case.graph,
        case.x.shape[0],
        edge_weight=case.edge_weight,
        boundary_mask=case.boundary_mask,
        normalization=normalization,
        dtype=case.x.dtype,
    )


def path(n, *, known=(), closed=False, sheaf=None, normalization="block"):
    edge_index = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    if closed:
        edge_index = torch.cat([edge_index, torch.tensor([[n - 1], [0]])], dim=1)
    mask = torch.zeros(n, dtype=torch.bool)
    mask[list(known)] = True
    sheaf = sheaf or IdentitySheaf(relations=1)
    return PropagationPlan(
        edge_index,
        torch.zeros(edge_index.shape[1], dtype=torch.long),
        sheaf,
        n,
        boundary_mask=mask,
        normalization=normalization,
        dtype=sheaf.dtype or torch.float64,
    )


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("boundary", [0.0, 0.3])
@pytest.mark.parametrize("dense", [True, False])
def test_bounds_of_every_map_kind(kind, normalization, boundary, dense, monkeypatch):
    if not dense:
        monkeypatch.setattr(spectrum, "_DENSE_SIZE", 0)
    case = make_case(kind, 4, boundary=boundary, num_edges=60)
    plan = plan_of(case, normalization)
    l_uu, metric, _, _ = dense_system(case, normalization)
    root = torch.block_diag(
        *[pinv_sqrt(metric[i : i + WIDTH, i : i + WIDTH]) for i in range(0, metric.shape[0], WIDTH)]
    )
    values = torch.linalg.eigvalsh(root @ l_uu @ root)
    ours = torch.linalg.eigvalsh(normalized_matrix(plan, WIDTH))
    assert torch.allclose(ours, values, atol=1e-6)
    found = spectral_bounds(plan, WIDTH)
    nonzero = values[values > 1e-9 * values[-1]]
    assert found.lower == pytest.approx(float(nonzero[0]), rel=1e-4)
    assert found.upper == pytest.approx(float(values[-1]), rel=1e-6)
    assert largest_eigenvalue(plan, WIDTH) == found.upper
    assert found.upper <= upper_bound(plan) * (1 + 1e-9)


def test_lanczos_on_a_long_cycle():
    # Eigenvalues 1 - cos(2 pi j / n), each with every column.
    n = 301
    plan = path(n, closed=True)
    found = spectral_bounds(plan, 4, num_iterations=400)
    assert found.lower == pytest.approx(1 - math.cos(2 * math.pi / n), rel=1e-3)
    assert found.upper == pytest.approx(1 + math.cos(math.pi / n), rel=1e-6)
    few = spectral_bounds(plan, 4, num_iterations=20)
    assert found.lower <= few.lower <= few.upper <= found.upper


def test_eigenvalue_two_of_identity_maps_is_exact():
    assert reaches_two(path(2), 1)
    assert reaches_two(path(2000), 1)
    assert not reaches_two(path(2000, known=[7]), 1)
    assert reaches_two(path(1000, closed=True), 1)
    # The largest eigenvalue, 2 - 5e-6, is no 2.
    assert not reaches_two(path(1001, closed=True), 1)
    assert not reaches_two(path(3, known=[0, 1, 2]), 1)


def test_a_loop_settles_the_degree_normalization_only():
    edge_index, edge_type = torch.tensor([[0, 1], [1, 1]]), torch.tensor([0, 0])
    for normalization, expected in (("block", True), ("degree", False)):
        plan = PropagationPlan(
            edge_index, edge_type, IdentitySheaf(relations=1), 2, normalization=normalization
        )
        assert reaches_two(plan, 1) is expected
        assert (largest_eigenvalue(plan, 1) > 2 - 1e-6) is expected


def test_bipartiteness_does_not_decide_for_other_maps():
    # With R_h = -1 an odd cycle has eigenvalue 2, and signs that cannot be undone take it away.
    minus = DiagonalSheaf(-torch.ones(1, 1, dtype=torch.float64))
    assert reaches_two(path(3, closed=True, sheaf=minus), 1)
    turn = DiagonalSheaf(
        torch.polar(torch.ones(1, 1), torch.full((1, 1), 0.5)).to(torch.complex128)
    )
    assert not reaches_two(path(4, closed=True, sheaf=turn), 1)


def test_empty_operators():
    assert spectral_bounds(path(3, known=[0, 1, 2]), 2) == (0, 0)
    none = torch.zeros(2, 0, dtype=torch.long)
    plan = PropagationPlan(none, none[0], IdentitySheaf(relations=1), 300, normalization=None)
    assert spectral_bounds(plan, 1) == (0, 0)
    assert upper_bound(plan) == 0
