"""Finite diffusion times against matrix exponentials."""

import math

import pytest
import torch

from sheafprop.nn import SheafDiffusion
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
