import math

import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.nn.solvers.linear_system import LinearSystem, inner, norm_of, rounding_of
from sheafprop.sheaf import PropagationPlan
from tests.sheaf_cases import NUM_NODES, SHEAF_KINDS, dense_system, make_case


def plan_of(case, normalization="block"):
    return PropagationPlan(
        *case.graph, NUM_NODES, edge_weight=case.edge_weight, boundary_mask=case.boundary_mask,
        normalization=normalization, dtype=case.x.dtype,
    )  # fmt: skip


@pytest.mark.parametrize("normalization", ["block", "degree"])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_the_operator_is_the_dense_matrix(kind, normalization):
    case = make_case(kind, 2)
    l_uu, metric, _, _ = dense_system(case, normalization)
    system = LinearSystem(plan_of(case, normalization), 0.3)
    v = case.x[~case.boundary_mask].unsqueeze(1)
    expected = ((l_uu + 0.3 * metric) @ v.flatten()).view_as(v)
    assert torch.allclose(system.apply(v), expected, atol=1e-11)
    assert system.applications == 1
    # The bound on the spectrum of the normalized matrix holds.
    assert (
        float(inner(v, expected, (0, 1, 2)))
        <= system.upper * norm_of(system.plan.apply_metric(v), v) ** 2 + 1e-9
    )


def test_norms_and_goals():
    case = make_case("dense, pair", 2)
    plan = plan_of(case)
    _, metric, _, _ = dense_system(case, "block")
    residual = plan.project(case.x.unsqueeze(1)[plan.free_index])
    flat = residual.flatten()
    expected = math.sqrt(float(flat @ torch.linalg.pinv(metric, hermitian=True) @ flat))
    assert LinearSystem(plan).norm(residual) == pytest.approx(expected, rel=1e-9)
    assert 0 < rounding_of(plan, residual) < 1e-12 * expected
    system = LinearSystem(plan, rounding=0.5)
    assert system.goal(1.0, 1e-3) == 0.5
    assert system.meets(0.4, 1.0, 1e-3)
    # A tolerance that the number type cannot meet is not excused by rounding.
    assert not system.meets(0.4, 1.0, 1e-17)
    with pytest.raises(DivergenceError, match="not finite"):
        norm_of(torch.full((1, 1, 1), math.inf), torch.ones(1, 1, 1))


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
