"""Features on their way into a layer, and results on theirs out of it."""

import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.nn import SheafConv
from sheafprop.nn.features import (
    check_result,
    from_sections,
    prepare_features,
    round_result,
    to_sections,
    with_free,
)
from sheafprop.sheaf import IdentitySheaf
from tests.sheaf_cases import make_case


@pytest.mark.parametrize("shape", [(4, 3), (1, 4, 3), (2, 4, 3)])
def test_sections_and_back(shape):
    x = torch.arange(24.0)[: torch.Size(shape).numel()].view(shape)
    sections = to_sections(x)
    assert sections.shape == (4, 1 if len(shape) == 2 else shape[0], 3)
    assert torch.equal(sections[:, 0], x if len(shape) == 2 else x[0])
    assert torch.equal(from_sections(sections, x), x)


def test_free_rows_are_put_among_the_known_ones():
    case = make_case("identity")
    plan = SheafConv().plan(case.x, *case.graph, boundary_mask=case.boundary_mask)
    sections = case.x.unsqueeze(1)
    out = with_free(sections, plan, -sections[plan.free_index])
    sign = torch.where(case.boundary_mask, 1.0, -1.0).view(-1, 1, 1)
    assert torch.equal(out, sign * sections)
    everyone = SheafConv().plan(case.x, *case.graph)
    assert with_free(sections, everyone, out) is out


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_features_are_computed_in_single_precision_and_rounded_once(half):
    x = torch.tensor([[0.1, 2.0]]).to(half)
    wide = prepare_features(x, IdentitySheaf(relations=1))
    assert wide.dtype == torch.float32
    assert torch.equal(wide, x.float())
    assert torch.equal(round_result(wide / 3, x), (x.float() / 3).to(half))
    assert round_result(wide, wide) is wide
    assert prepare_features(x, IdentitySheaf(torch.ones(1, 2).double())).dtype == torch.float64
    with pytest.raises(DivergenceError, match="too large for torch"):
        round_result(torch.full((1, 1), 1e5), torch.ones(1, 1).half())


def test_features_of_inference_mode_may_take_part_in_gradients():
    with torch.inference_mode():
        x = torch.ones(2, 2)
    assert not prepare_features(x, IdentitySheaf(relations=1)).is_inference()


def test_a_result_that_is_not_finite_blames_the_features_first():
    x, out = torch.ones(3, 2), torch.ones(3, 2)
    check_result(out, x)
    out[1, 0] = float("inf")
    with pytest.raises(DivergenceError, match="double precision"):
        check_result(out, x)
    x[2, 1] = float("nan")
    with pytest.raises(ValueError, match="row 2"):
        check_result(out, x)
