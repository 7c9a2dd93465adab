"""What is made in torch.inference_mode serves later gradients, or says why it cannot."""

import pytest
import torch

from tests.nn.test_layers import LAYERS, options, run
from tests.sheaf_cases import SHEAF_KINDS, make_case

NORMALIZATIONS = ["block", "degree"]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("cached", [False, True])
def test_a_plan_of_inference_mode_serves_gradients_of_the_features(
    name, kind, normalization, cached
):
    case = make_case(kind, 3)
    layer = LAYERS[name](normalization=normalization, cached=cached)
    with torch.inference_mode():
        plan = None if cached else layer.plan(case.x, *case.graph, **options(case))
        # What a plan makes at its first use is made here.
        early = run(layer, case, plan=plan)
    grads = []
    fresh = LAYERS[name](normalization=normalization)
    for used, given in ((layer, plan), (fresh, None)):
        x = case.x.clone().requires_grad_()
        out = run(used, case, x=x, plan=given)
        out.abs().square().sum().backward()
        assert torch.allclose(out, early, atol=1e-8)
        grads.append(x.grad)
    assert torch.allclose(*grads, atol=1e-8)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["identity", "diagonal, complex pair", "dense, pair"])
def test_gradients_of_maps_need_another_plan_and_it_is_said(name, kind):
    case = make_case(kind, 3)
    case.sheaf = case.sheaf.map_tensors(lambda t: t.clone().requires_grad_())
    layer = LAYERS[name](cached=True)
    with torch.inference_mode():
        run(layer, case)
    with pytest.raises(ValueError, match="built for a sheaf without gradients"):
        run(layer, case)
    layer.reset_parameters()
    run(layer, case).abs().sum().backward()
    assert all(t.grad is not None for t in case.sheaf.tensors().values())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["identity", "diagonal, unitary", "dense, shared"])
def test_tensors_of_inference_mode_may_be_given(name, kind):
    case = make_case(kind, 3)
    layer = LAYERS[name]()
    expected = run(layer, case)
    with torch.inference_mode():
        case.edge_index, case.edge_type = case.edge_index.clone(), case.edge_type.clone()
        case.edge_weight, case.boundary_mask = case.edge_weight.clone(), case.boundary_mask.clone()
        case.x, constant = case.x.clone(), case.sheaf.map_tensors(torch.clone)
    x = case.x.clone().requires_grad_()
    out = run(layer, case, x=x, sheaf=constant)
    out.abs().sum().backward()
    assert torch.allclose(out, expected, atol=1e-8)
    assert x.grad.isfinite().all()
    maps = case.sheaf.map_tensors(lambda t: t.clone().requires_grad_())
    run(layer, case, sheaf=maps).abs().sum().backward()
    assert all(t.grad.isfinite().all() for t in maps.tensors().values())
    if name != "limit":
        layer.register_message_forward_hook(lambda *_: None)
        x = case.x.clone().requires_grad_()
        run(layer, case, x=x, sheaf=constant).abs().sum().backward()
        assert x.grad.isfinite().all()


def test_memory_kept_between_calls_may_be_written_outside():
    case = make_case("dense, pair", 3)
    layer = LAYERS["propagation"](cached=True)
    with torch.inference_mode():
        first = run(layer, case)
    assert torch.equal(run(layer, case), first)
    with torch.no_grad():
        assert torch.equal(run(layer, case), first)


def test_gradients_stay_off_where_a_plan_is_made_in_no_grad_and_inference_mode():
    case = make_case("diagonal, real pair", 3)
    case.sheaf = case.sheaf.map_tensors(lambda t: t.clone().requires_grad_())
    layer = LAYERS["conv"]()
    with torch.inference_mode():
        plan = layer.plan(case.x, *case.graph, **options(case))
        assert not plan.blocks.entries.requires_grad
        assert not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled()
