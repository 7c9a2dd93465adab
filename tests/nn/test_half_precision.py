"""Half precision in and out, single precision within."""

import pytest
import torch
from torch import nn

from sheafprop.errors import DivergenceError
from sheafprop.nn import HarmonicExtension, SheafConv, SheafPropagation, draw_sections
from sheafprop.sheaf import DiagonalSheaf, IdentitySheaf
from tests.nn.test_layers import LAYERS, options, run
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_case

HALF = [torch.float16, torch.bfloat16]
#: Of every kind of map, the real ones: there are no complex numbers of bfloat16.
REAL = [kind for kind in SHEAF_KINDS if "complex" not in kind and "unitary" not in kind]


def layer_of(name, **settings):
    return LAYERS[name](**settings) if name != "limit" else HarmonicExtension("cg", tol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("dtype", HALF)
def test_a_half_model_computes_in_single_precision_and_rounds_once(name, kind, dtype):
    case = make_case(kind, 4, num_edges=50)
    case.x, case.sheaf = case.x.to(dtype), case.sheaf.promote(dtype)
    layer = layer_of(name)
    wide = dict(x=case.x.float(), sheaf=case.sheaf.promote(torch.float32))
    expected = run(layer, case, **wide)
    assert expected.dtype == torch.float32
    assert torch.equal(run(layer, case), expected.to(dtype))
    # Known rows are not rounded at all.
    assert torch.equal(run(layer, case)[case.boundary_mask], case.x[case.boundary_mask])
    sections = torch.stack([case.x, case.x / 2, case.x.flip(0)])
    out = run(layer, case, x=sections)
    assert out.dtype == dtype
    assert torch.equal(out, run(layer, case, **(wide | {"x": sections.float()})).to(dtype))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("maps", [torch.float32, torch.float64])
def test_the_type_follows_the_features_whatever_the_maps_have(name, dtype, maps):
    case = make_case("diagonal, real pair", 4, num_edges=50)
    case.sheaf = case.sheaf.promote(maps)
    out = run(layer_of(name), case, x=case.x.to(dtype))
    assert out.dtype == dtype
    assert out.isfinite().all()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_reach_half_parameters(name, dtype, autocast):
    case = make_case("dense, pair", 4, num_edges=50)
    layer = layer_of(name)
    if autocast:
        first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        maps, x = case.sheaf.promote(torch.float32), case.x.float()
    else:
        first, last = nn.Linear(WIDTH, WIDTH).to(dtype), nn.Linear(WIDTH, 2).to(dtype)
        maps, x = case.sheaf.promote(dtype), case.x.to(dtype)
    maps = maps.map_tensors(lambda t: t.clone().requires_grad_())
    x = x.requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        hidden = first(x)
        assert hidden.dtype == dtype
        out = run(layer, case, x=hidden, sheaf=maps)
        assert out.dtype == dtype
        last(out).float().square().mean().backward()
    for tensor in (x, *first.parameters(), *maps.tensors().values()):
        assert tensor.grad.dtype == tensor.dtype
        assert tensor.grad.isfinite().all()
        assert (tensor.grad != 0).any()


def test_complex_half_features():
    case = make_case("diagonal, unitary", 4)
    x = case.x.to(torch.complex32)
    out = run(SheafPropagation(3), case, x=x, sheaf=case.sheaf.promote(torch.complex64))
    wide = x.to(torch.complex64)
    expected = run(SheafPropagation(3), case, x=wide, sheaf=case.sheaf.promote(torch.complex64))
    assert out.dtype == torch.complex32
    assert torch.equal(torch.view_as_real(out), torch.view_as_real(expected).half())


@pytest.mark.parametrize("dtype", HALF)
def test_sections(dtype):
    case = make_case("identity", 4)
    case.x, case.sheaf = case.x.to(dtype), case.sheaf.promote(dtype)
    start = draw_sections(case.x.unsqueeze(1).expand(-1, 2, -1), case.boundary_mask)
    start = start.transpose(0, 1)
    out = SheafPropagation(3)(start, *case.graph, **options(case))
    expected = SheafPropagation(3)(start.float(), *case.graph, **options(case))
    assert out.shape == (2, 12, WIDTH)
    assert torch.equal(out, expected.to(dtype))


@pytest.mark.parametrize("dtype", HALF)
def test_trajectories(dtype):
    case = make_case("diagonal, real pair", 4)
    layer = SheafPropagation()
    plan = layer.plan(case.x.to(dtype), *case.graph, **options(case))
    sections = case.x.to(dtype).unsqueeze(1)
    wide = dict(layer.trajectory(plan, sections.to(plan.dtype), [0, 3, 200]))
    for count, vectors in layer.trajectory(plan, sections, [0, 3, 200]):
        assert torch.equal(vectors, wide[count].to(dtype))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", HALF)
def test_graphs_without_edges_or_free_nodes(name, dtype):
    case = make_case("identity", 4)
    case.x, case.sheaf = case.x.to(dtype), case.sheaf.promote(dtype)
    empty = torch.zeros(2, 0, dtype=torch.int32)
    bare = dict(edge_index=empty, edge_type=empty[0], edge_weight=None)
    everyone = torch.ones(12, dtype=torch.bool)
    for changes in (bare, dict(boundary_mask=everyone)):
        out = run(layer_of(name), case, **changes)
        assert out.dtype == dtype
        assert torch.equal(out, case.x)
    assert run(layer_of(name), case, x=case.x[:0], **(bare | dict(boundary_mask=None))).numel() == 0


def test_results_too_large_for_half_precision_are_refused():
    # 50000 + 50000 is a number of bfloat16, not of float16.
    x, known = torch.tensor([[50000.0], [0.0]]), torch.tensor([True, False])
    edges, sheaf = torch.tensor([[0], [1]]), IdentitySheaf(torch.tensor([[50000.0]]))
    for layer in (SheafConv(), SheafPropagation(40), HarmonicExtension()):
        with pytest.raises(DivergenceError, match=r"float16.*bfloat16 or single precision"):
            layer(x.half(), edges, torch.tensor([0]), sheaf, boundary_mask=known)
        out = layer(x.bfloat16(), edges, torch.tensor([0]), sheaf, boundary_mask=known)
        assert out[1] > 80000


def test_compiled_layers():
    for dtype in HALF:
        case = make_case("diagonal, real pair", 3)
        case.x, case.sheaf = case.x.to(dtype), case.sheaf.promote(dtype)
        layer = SheafPropagation(2)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        out = compiled(case.x, *case.graph, **options(case))
        assert out.dtype == dtype
        expected = layer(case.x, *case.graph, **options(case))
        assert torch.allclose(out.float(), expected.float(), atol=1e-4, rtol=torch.finfo(dtype).eps)


def test_complex_maps_refuse_real_half_features():
    sheaf = DiagonalSheaf(torch.ones(1, 2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"must be complex.*bfloat16"):
        SheafConv()(torch.ones(2, 2).bfloat16(), torch.ones(2, 1).long(), torch.zeros(1), sheaf)
