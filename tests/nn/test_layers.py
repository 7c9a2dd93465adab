"""What every layer promises alike, over all layers and map kinds."""

import dataclasses
import inspect
import itertools
import re
import warnings

import pytest
import torch
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.nn import MessagePassing

import sheafprop.nn
from sheafprop.errors import DivergenceError
from sheafprop.nn import HarmonicExtension, SheafConv, SheafDiffusion, SheafPropagation
from sheafprop.sheaf import (
    DenseSheaf,
    DiagonalSheaf,
    IdentitySheaf,
    PropagationPlan,
    QuaternionSheaf,
)
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_case

LAYERS = {
    "conv": SheafConv,
    "propagation": lambda **k: SheafPropagation(4, **k),
    "teleport": lambda **k: SheafPropagation(4, teleport=0.3, **k),
    "accelerated": lambda **k: SheafPropagation(200, **k),
    "diffusion": lambda **k: SheafDiffusion(3.0, **k),
    "diffusion, teleport": lambda **k: SheafDiffusion(3.0, teleport=0.2, **k),
    "limit": lambda **k: HarmonicExtension("cg", tol=1e-10, **k),
}
SENDING = [name for name in LAYERS if name != "limit"]


def options(case):
    return dict(edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)


def run(layer, case, **changes):
    arguments = dict(x=case.x, edge_index=case.edge_index, edge_type=case.edge_type)
    arguments |= dict(sheaf=case.sheaf) | options(case) | changes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return layer(**arguments)


def converted(sheaf, **dtypes):
    """The sheaf with some of its tensors in another number type."""
    changes = {
        name: tensor.to(dtypes[name]) for name, tensor in sheaf.tensors().items() if name in dtypes
    }
    return dataclasses.replace(sheaf, **changes)


@pytest.fixture(params=SHEAF_KINDS)
def case(request):
    return make_case(request.param, 3)


def test_every_layer_is_tested():
    public = {
        value
        for name in sheafprop.nn.__all__
        if isinstance(value := getattr(sheafprop.nn, name), type)
        and issubclass(value, MessagePassing)
    }
    assert {type(make()) for make in LAYERS.values()} == public


# Hooks and explainers ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", SENDING)
def test_hooks_see_the_messages_and_change_nothing(case, name):
    layer = LAYERS[name]()
    expected = run(layer, case)
    seen = []
    layer.register_message_forward_hook(lambda module, inputs, out: seen.append(out.shape))
    assert torch.allclose(run(layer, case), expected, atol=1e-8)
    assert len(seen) >= 4 or name == "conv"
    assert all(shape[0] == 2 and shape[-2] == case.edge_type.numel() for shape in seen)


@pytest.mark.parametrize("name", SENDING)
@pytest.mark.parametrize(
    "register",
    [
        "register_message_forward_pre_hook",
        "register_message_forward_hook",
        "register_aggregate_forward_pre_hook",
        "register_aggregate_forward_hook",
        "register_propagate_forward_pre_hook",
        "register_propagate_forward_hook",
    ],
)
def test_every_hook_is_called(name, register):
    case = make_case("diagonal, unitary", 3)
    layer = LAYERS[name]()
    calls = []
    handle = getattr(layer, register)(lambda *_: calls.append(1))
    run(layer, case)
    assert calls
    handle.remove()
    count = len(calls)
    run(layer, case)
    assert len(calls) == count


def test_a_class_that_extends_a_compiled_one_still_sees_masks():
    class Mine(SheafConv):
        pass

    SheafConv(), Mine()
    case = make_case("identity", 3)
    layer = Mine()
    set_masks(layer, torch.zeros(30), case.edge_index, apply_sigmoid=False)
    assert torch.equal(run(layer, case), case.x)


@pytest.mark.parametrize("name", SENDING)
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_a_mask_on_messages_is_a_weight_on_the_gradient(kind, name):
    case = make_case(kind, 3)
    layer = LAYERS[name]()
    keep = torch.ones(case.edge_type.numel(), dtype=torch.float64)
    keep[[0, 9, 14]] = 0
    set_masks(layer, keep, case.edge_index, apply_sigmoid=False)
    masked = run(layer, case)
    # The metric M is that of the whole graph, the gradient that of the triples kept: with M = I
    # this is the graph without the others.
    clear_masks(layer)
    assert not torch.allclose(masked, run(layer, case), atol=1e-6)
    plain = LAYERS[name](normalization=None, **({} if "diff" in name else {"step_size": 0.01}))
    set_masks(plain, keep, case.edge_index, apply_sigmoid=False)
    masked = run(plain, case)
    clear_masks(plain)
    if "diff" not in name:
        assert torch.allclose(masked, run(plain, case, edge_weight=case.edge_weight * keep))
    else:
        reference = run(plain, case, edge_weight=case.edge_weight * keep)
        assert torch.allclose(masked, reference, atol=1e-6)


@pytest.mark.parametrize("name", ["conv", "propagation", "diffusion"])
def test_the_explainer_of_pyg_finds_the_triple_that_matters(name):
    # 0 and 1 are known; 2 hangs on 0 by a heavy triple and on 1 by a light one.
    edge_index = torch.tensor([[0, 1, 1], [2, 2, 0]])
    known = torch.tensor([True, True, False])
    x = torch.tensor([[3.0, 1.0], [-2.0, 0.5], [0.0, 0.0]])
    weight = torch.tensor([8.0, 0.5, 1.0])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = LAYERS[name]()

        def forward(self, x, edge_index):
            sheaf = IdentitySheaf(relations=1)
            kinds = torch.zeros(3, dtype=torch.long)
            return self.layer(x, edge_index, kinds, sheaf, edge_weight=weight, boundary_mask=known)

    torch.manual_seed(0)
    explainer = Explainer(
        Model(),
        algorithm=GNNExplainer(epochs=60),
        explanation_type="model",
        edge_mask_type="object",
        model_config=dict(mode="regression", task_level="node", return_type="raw"),
    )
    mask = explainer(x, edge_index, index=2).edge_mask
    assert mask[0] > mask[1]
    assert mask[2] == 0, "a triple between known vertices sends nothing that counts"


def test_tolerance_and_counts_hold_message_by_message():
    case = make_case("identity", 4, num_edges=60)
    layer = SheafPropagation(500, tol=1e-8)
    expected = run(layer, case)
    layer.register_message_forward_hook(lambda *_: None)
    assert torch.allclose(run(layer, case), expected, atol=1e-12)
    plan = layer.plan(case.x, *case.graph, **options(case))
    found = list(layer.trajectory(plan, case.x.unsqueeze(1), [1, 3]))
    layer = SheafPropagation(tol=1e-8)
    theirs = list(layer.trajectory(plan, case.x.unsqueeze(1), [1, 3]))
    for (_, ours), (_, reference) in zip(found, theirs, strict=True):
        assert torch.allclose(ours, reference, atol=1e-12)


def test_the_limit_refuses_hooks_and_explainers_by_name():
    case = make_case("identity")
    layer = HarmonicExtension()
    handle = layer.register_message_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="take SheafPropagation"):
        run(layer, case)
    handle.remove()
    set_masks(layer, torch.ones(30), case.edge_index)
    with pytest.raises(ValueError, match="take SheafPropagation"):
        run(layer, case)
    clear_masks(layer)
    run(layer, case)


# Number types -----------------------------------------------------------------------------------

NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
WIDE = {torch.float64: torch.complex128, torch.complex128: torch.complex128}


def close(out, expected, dtype):
    assert out.dtype == dtype
    single = torch.finfo(dtype).eps > 1e-10
    return torch.allclose(
        out.to(expected.dtype), expected, atol=2e-3 if single else 1e-9, rtol=2e-3
    )


@pytest.mark.parametrize("name", LAYERS)
def test_single_features_and_double_maps_promote(case, name):
    if case.sheaf.dtype is None:
        pytest.skip("a sheaf without numbers")
    layer = LAYERS[name]()
    x = case.x.to(NARROW[case.x.dtype])
    expected = run(layer, case, x=x.to(case.x.dtype))
    assert close(run(layer, case, x=x), expected, case.x.dtype)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_maps_and_features_compute_in_single_precision(name, dtype):
    for kind in ("identity", "diagonal, real pair", "dense, shared", "dense, pair"):
        case = make_case(kind, 4, num_edges=60)
        layer = LAYERS[name]() if name != "limit" else HarmonicExtension("cg", tol=1e-4)
        half = case.sheaf.promote(dtype)
        single = half.promote(torch.float32)
        x = case.x.to(dtype)
        expected = run(layer, case, x=x.float(), sheaf=single)
        for features, sheaf in ((x, half), (x.float(), half), (x, single)):
            out = run(layer, case, x=features, sheaf=sheaf)
            assert out.dtype == features.dtype
            assert torch.equal(out, expected.to(features.dtype))
        assert expected.dtype == torch.float32
        double = run(layer, case, x=x.double(), sheaf=half)
        assert double.dtype == torch.float64


@pytest.mark.parametrize("name", LAYERS)
def test_complex_features_under_real_maps(case, name):
    if case.x.is_complex():
        pytest.skip("complex already")
    layer = LAYERS[name]()
    other = case.x.flip(0)
    out = run(layer, case, x=torch.complex(case.x, other))
    # Real translations move the real part alone: the imaginary part is that of the linear map.
    still = {"translation": None}
    if isinstance(case.sheaf, IdentitySheaf):
        still = {"translation": None, "relations": case.sheaf.num_relations}
    linear = dataclasses.replace(case.sheaf, **still)
    assert torch.allclose(out.real, run(layer, case), atol=1e-6)
    assert torch.allclose(out.imag, run(layer, case, x=other, sheaf=linear), atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_tensors_of_a_sheaf_may_differ_in_type(case, name):
    fields = list(case.sheaf.tensors())
    layer = LAYERS[name]()
    for field in fields:
        dtype = NARROW[case.x.dtype]
        mixed = converted(case.sheaf, **{field: dtype})
        same = mixed.promote(case.x.dtype)
        expected = run(layer, case, sheaf=same)
        assert close(run(layer, case, sheaf=mixed), expected, case.x.dtype)
        if not case.x.is_complex() and not isinstance(case.sheaf, QuaternionSheaf):
            partly = converted(case.sheaf, **{field: torch.complex128})
            x = case.x.to(torch.complex128)
            assert partly.dtype == torch.complex128
            out = run(layer, case, sheaf=partly, x=x)
            assert torch.allclose(out, run(layer, case, x=x), atol=1e-8)
            with pytest.raises(ValueError, match=r"complex128.*must be complex.*float64"):
                run(layer, case, sheaf=partly)


def test_promotion_keeps_a_shared_map_and_its_gradient():
    maps = torch.randn(4, 2, WIDTH, requires_grad=True)
    sheaf = DenseSheaf(maps, maps)
    wide = sheaf.promote(torch.float64)
    assert wide.head is wide.tail
    assert sheaf.promote(torch.float32) is sheaf
    case = make_case("dense, shared")
    run(SheafPropagation(2), case, sheaf=sheaf).square().sum().backward()
    assert maps.grad.dtype == torch.float32
    assert (maps.grad != 0).any()


def test_integers_are_refused_as_maps():
    ones = torch.ones(2, WIDTH, dtype=torch.long)
    for make in (
        lambda: IdentitySheaf(ones),
        lambda: DiagonalSheaf(ones),
        lambda: DiagonalSheaf(ones.float(), translation=ones),
        lambda: DenseSheaf(ones.unsqueeze(1), ones.unsqueeze(1)),
    ):
        with pytest.raises(ValueError, match=r"got torch\.int64"):
            make()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_nothing(case, name, dtype):
    layer = LAYERS[name]()
    expected = run(layer, case)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(run(layer, case), expected)
        plan = layer.plan(case.x, *case.graph, **options(case))
        assert torch.equal(run(layer, case, plan=plan), expected)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_propagate_of_half_features_computes_in_single_precision(half):
    for kind in ("identity", "diagonal, real pair", "dense, pair"):
        case = make_case(kind, 3)
        sheaf = case.sheaf.promote(half)
        conv = SheafConv()
        out = conv.propagate(
            case.edge_index,
            x=case.x.to(half),
            edge_type=case.edge_type,
            sheaf=sheaf,
            **options(case),
        )
        expected = run(conv, case, x=case.x.to(half).float(), sheaf=sheaf)
        assert out.dtype == half
        # One rounding to half precision, beside those of single precision.
        assert torch.allclose(out.float(), expected, atol=1e-4, rtol=torch.finfo(half).eps)


# Plans ------------------------------------------------------------------------------------------


def other_arguments(case):
    """Arguments that differ from the case's, and what an error must name."""
    head, tail = case.edge_index
    turned = case.edge_index.clone()
    turned[:, 5] = turned[:, 5].flip(0)
    turned[:, 8] = torch.stack([head[8], (tail[8] + 1) % 11])
    kinds = case.edge_type.clone()
    kinds[8] = (kinds[8] + 1) % 4
    weight = case.edge_weight.clone()
    weight[8] += 1
    mask = case.boundary_mask.clone()
    mask[-1] = True
    moved = {name: 2 * value for name, value in case.sheaf.tensors().items()}
    if moved:
        sheaf = dataclasses.replace(case.sheaf, **moved)
    else:
        sheaf = IdentitySheaf(torch.ones(4, WIDTH, dtype=torch.float64))
    return [
        (dict(edge_index=turned), "another 'edge_index'"),
        (dict(edge_type=kinds), "another 'edge_type'"),
        (
            dict(
                edge_index=case.edge_index[:, 1:],
                edge_type=case.edge_type[1:],
                edge_weight=case.edge_weight[1:],
            ),
            r"30 edges \(got 29\)",
        ),
        (dict(edge_weight=weight), "another 'edge_weight'"),
        (dict(boundary_mask=mask), "another 'boundary_mask'"),
        (dict(sheaf=sheaf), "another sheaf"),
        (dict(x=case.x[:-1]), r"12 nodes \(got 11\)"),
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_a_plan_for_something_else_is_refused(case, name):
    layer = LAYERS[name]()
    plan = layer.plan(case.x, *case.graph, **options(case))
    expected = run(layer, case, plan=plan)
    for changes, message in other_arguments(case):
        with pytest.raises(ValueError, match=f"the plan was built for {message}"):
            run(layer, case, plan=plan, **changes)
    other = LAYERS[name](normalization="degree")
    with pytest.raises(ValueError, match=r"normalization='block' \(the layer has 'degree'\)"):
        run(other, case, plan=plan)
    with pytest.raises(TypeError, match=r"'plan' must be what layer.plan\(...\) returns \(got 3\)"):
        run(layer, case, plan=3)
    # Copies of the same values are the same, and weights and boundary may be left out.
    copies = dict(
        edge_index=case.edge_index.clone().int(),
        edge_type=case.edge_type.clone(),
        edge_weight=case.edge_weight.clone(),
        boundary_mask=case.boundary_mask.clone(),
        sheaf=dataclasses.replace(
            case.sheaf, **{k: v.clone() for k, v in case.sheaf.tensors().items()}
        ),
    )
    assert torch.equal(run(layer, case, plan=plan, **copies), expected)
    bare = run(layer, case, plan=plan, edge_weight=None, boundary_mask=None)
    assert torch.equal(bare, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_a_cached_plan_for_something_else_is_refused(case, name):
    layer = LAYERS[name](cached=True)
    expected = run(layer, case)
    for changes, message in other_arguments(case):
        with pytest.raises(ValueError, match=f"plan was built for {message}.*reset_parameters"):
            run(layer, case, **changes)
    with pytest.raises(ValueError, match="another 'edge_weight'"):
        run(layer, case, edge_weight=None)
    with pytest.raises(ValueError, match=r"'boundary_mask' \(with \d known vertices, got 0\)"):
        run(layer, case, boundary_mask=None)
    assert torch.equal(run(layer, case), expected)
    layer.reset_parameters()
    changes = dict(boundary_mask=None, edge_weight=None)
    assert torch.equal(run(layer, case, **changes), run(LAYERS[name](), case, **changes))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    "written", ["edge_index", "edge_type", "edge_weight", "boundary_mask", "sheaf"]
)
@pytest.mark.parametrize("kind", [k for k in SHEAF_KINDS if k != "identity, untranslated"])
def test_what_is_written_in_place_is_noticed(kind, written, cached):
    case = make_case(kind, 3)
    layer = SheafPropagation(3, cached=cached)
    plan = layer.plan(case.x, *case.graph, **options(case))
    given = {} if cached else {"plan": plan}
    tensors = vars(case) | {"sheaf": next(iter(case.sheaf.tensors().values()))}
    tensor = tensors[written]
    if written == "boundary_mask":
        tensor[-1] = ~tensor[-1]
    elif written == "edge_index":
        tensor.copy_(tensor.flip(0))
    elif written == "edge_type":
        tensor.copy_((tensor + 1) % 4)
    else:
        tensor.mul_(2)
    with pytest.raises(ValueError, match=r"another 'boundary_mask'|changed in place"):
        run(layer, case, **given)


def test_inference_tensors_are_compared_by_value():
    case = make_case("diagonal, unitary", 3)
    with torch.inference_mode():
        weight = case.edge_weight.clone()
        layer = SheafPropagation(3, cached=True)
        run(layer, case, edge_weight=weight)
        run(layer, case, edge_weight=weight)
        weight[3] += 1
        with pytest.raises(ValueError, match="another 'edge_weight'"):
            run(layer, case, edge_weight=weight)


def test_no_weights_are_weights_of_one_and_no_boundary_is_an_empty_one():
    case = make_case("identity")
    layer = SheafPropagation(3)
    ones, nobody = torch.ones(30).double(), torch.zeros(12, dtype=torch.bool)
    bare = layer.plan(case.x, *case.graph)
    full = layer.plan(case.x, *case.graph, ones, nobody)
    for plan, weight, mask in itertools.product((bare, full), (ones, None), (nobody, None)):
        run(layer, case, plan=plan, edge_weight=weight, boundary_mask=mask)


def test_equal_maps_that_want_gradients_need_their_own_plan():
    case = make_case("diagonal, unitary", 3)
    layer = SheafPropagation(3, cached=True)
    run(layer, case)
    wanting = DiagonalSheaf(case.sheaf.head.clone().requires_grad_())
    with pytest.raises(ValueError, match="another sheaf"):
        run(layer, case, sheaf=wanting)


@pytest.mark.parametrize("kind", ["identity", "diagonal, unitary", "dense, pair"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("cached", [False, True])
def test_a_plan_made_without_gradients_does_not_lose_them(kind, name, cached):
    case = make_case(kind, 3)
    layer = LAYERS[name](cached=cached)
    case.sheaf = dataclasses.replace(
        case.sheaf,
        **{n: t.clone().requires_grad_() for n, t in case.sheaf.tensors().items()},
    )
    with torch.no_grad():
        plan = layer.plan(case.x, *case.graph)
        given = {} if cached else {"plan": plan}
        expected = run(layer, case, edge_weight=None, boundary_mask=None, **given)
    with pytest.raises(ValueError, match="built for a sheaf without gradients"):
        run(layer, case, edge_weight=None, boundary_mask=None, **given)
    layer.reset_parameters()
    out = run(layer, case, edge_weight=None, boundary_mask=None)
    assert torch.allclose(out, expected)
    assert out.requires_grad


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(4, 0, 3), (4, 2, 0)])
def test_stalks_of_dimension_zero(name, shape):
    case = make_case("dense, pair", 3)
    maps = torch.zeros(shape, dtype=torch.float64)
    x = case.x[:, : shape[2]]
    assert torch.allclose(run(LAYERS[name](), case, x=x, sheaf=DenseSheaf(maps, maps)), x)


def test_a_plan_keeps_its_own_boundary():
    case = make_case("identity", 3)
    plan = PropagationPlan(*case.graph, 12, boundary_mask=case.boundary_mask)
    before = plan.boundary_mask.clone()
    case.boundary_mask[:] = True
    assert torch.equal(plan.boundary_mask, before)


def test_trajectories_check_their_plan():
    case = make_case("identity", 3)
    plan = SheafPropagation().plan(case.x, *case.graph)
    sections = case.x.unsqueeze(1)
    for layer, x, message in (
        (SheafPropagation(normalization="degree"), sections, "normalization='block'"),
        (SheafPropagation(), sections[:5], "12 nodes"),
        (SheafPropagation(), sections.to("meta"), "tensors on cpu \\(got 'x' on meta"),
    ):
        with pytest.raises(ValueError, match=message):
            list(layer.trajectory(plan, x, [1]))


# Values that are not finite ---------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_named_by_row(case, name, bad):
    layer = LAYERS[name]()
    for row in (0, 5, 11):
        x = case.x.clone()
        x[row, 1] = bad
        with pytest.raises(ValueError, match=rf"'x' must be finite.*row {row}\)"):
            run(layer, case, x=x)
    sections = torch.stack([case.x, case.x])
    sections[1, 4, 0] = bad
    with pytest.raises(ValueError, match=r"row 4\)"):
        run(layer, case, x=sections)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_maps_that_are_not_finite_are_named_by_relation(case, name, bad):
    layer = LAYERS[name]()
    for field, tensor in case.sheaf.tensors().items():
        broken = tensor.clone()
        broken[2].flatten()[1] = bad
        sheaf = dataclasses.replace(case.sheaf, **{field: broken})
        with pytest.raises(ValueError, match=f"'{field}' must be finite.*relation 2"):
            run(layer, case, sheaf=sheaf)


@pytest.mark.parametrize("name", LAYERS)
def test_values_too_large_for_the_number_type_stop_with_advice(case, name):
    layer = LAYERS[name]()
    advice = "double precision|scale features and maps down"
    with pytest.raises(DivergenceError, match=advice):
        run(layer, case, x=case.x / case.x.abs() * 1.7e308)
    maps = {k: v * 1e200 for k, v in case.sheaf.tensors().items() if k != "translation"}
    if maps:
        with pytest.raises(DivergenceError, match=r"block of free vertex \d+.*double precision"):
            run(layer, case, sheaf=dataclasses.replace(case.sheaf, **maps))


# Exactness --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_known_and_isolated_rows_are_bit_identical(case, name, normalization):
    settings = dict(normalization=normalization)
    if name not in ("limit", "diffusion", "diffusion, teleport"):
        settings["step_size"] = 0.9 if normalization else 0.01
    layer = LAYERS[name](**settings)
    for x in (case.x, case.x / 3, torch.stack([case.x / 7, case.x / 11])):
        out = run(layer, case, x=x)
        kept = case.boundary_mask.clone()
        kept[-1] = True
        assert torch.equal(out[..., kept, :], x[..., kept, :])
        assert not torch.equal(out, x)


# Odd inputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_awkward_graphs(case, name, normalization):
    layer = LAYERS[name](normalization=normalization)
    if normalization is None and name not in ("limit", "diffusion", "diffusion, teleport"):
        layer.step_size = 0.01
    none = dict(edge_weight=None, boundary_mask=None)
    empty = torch.zeros(2, 0, dtype=torch.long)
    bare = dict(edge_index=empty, edge_type=empty[0])
    assert torch.equal(run(layer, case, **bare, **none), case.x)
    assert run(layer, case, x=case.x[:0], **bare, **none).shape == (0, WIDTH)
    assert run(layer, case, x=case.x.expand(0, 12, WIDTH)).shape == (0, 12, WIDTH)
    everyone = torch.ones(12, dtype=torch.bool)
    assert torch.equal(run(layer, case, boundary_mask=everyone), case.x)
    assert torch.equal(run(layer, case, edge_weight=0 * case.edge_weight), case.x)
    expected = run(layer, case)
    wide = torch.empty(WIDTH, 24, dtype=case.x.dtype).T[::2]
    wide.copy_(case.x)
    assert not wide.is_contiguous()
    assert torch.allclose(run(layer, case, x=wide), expected, atol=1e-12)
    assert torch.allclose(run(layer, case, x=case.x.conj().resolve_conj().conj()), expected)
    ints = dict(edge_index=case.edge_index.int(), edge_type=case.edge_type.int())
    assert torch.equal(run(layer, case, **ints), expected)
    single = run(layer, case, x=case.x.unsqueeze(0))
    assert torch.allclose(single.squeeze(0), expected, atol=1e-9)


@pytest.mark.parametrize("name", [*LAYERS, "no steps", "no time"])
@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_the_result_never_shares_memory_with_the_features(name, normalization):
    case = make_case("identity", 3)
    empty = torch.zeros(2, 0, dtype=torch.long)
    layers = LAYERS | {
        "no steps": lambda **k: SheafPropagation(0, **k),
        "no time": lambda **k: SheafDiffusion(0.0, **k),
    }
    layer = layers[name](normalization=normalization)
    if normalization is None:
        layer.step_size = 0.01
    nobody, everyone = torch.zeros(12, dtype=torch.bool), torch.ones(12, dtype=torch.bool)
    for changes in (
        dict(edge_index=empty, edge_type=empty[0], edge_weight=None),
        dict(edge_index=empty, edge_type=empty[0], edge_weight=None, boundary_mask=None),
        dict(boundary_mask=everyone),
        dict(boundary_mask=nobody),
        dict(edge_weight=torch.zeros(30).double()),
        {},
    ):
        x = case.x.clone()
        out = run(layer, case, x=x, **changes)
        out.fill_(7)
        assert torch.equal(x, case.x)
        many = run(layer, case, x=x.unsqueeze(0), **changes)
        many.fill_(7)
        assert torch.equal(x, case.x)


@pytest.mark.parametrize("kind", ["identity", "diagonal, real pair", "dense, shared"])
@pytest.mark.parametrize("name", LAYERS)
def test_another_tensor_behind_data_is_noticed(kind, name):
    case = make_case(kind, 3)
    maps = case.sheaf.map_tensors(lambda t: torch.nn.Parameter(t.clone()))
    case.edge_type = case.edge_type.clone()
    layer = LAYERS[name](cached=True)
    run(layer, case, sheaf=maps)
    tensor = next(iter(maps.tensors().values()))
    tensor.data = 3 * tensor.data
    with pytest.raises(ValueError, match="values of sheaf that were changed"):
        run(layer, case, sheaf=maps)
    layer.reset_parameters()
    run(layer, case, sheaf=maps)
    case.edge_type.data = (case.edge_type + 1) % 4
    with pytest.raises(ValueError, match="values of 'edge_type' that were changed"):
        run(layer, case, sheaf=maps)
    layer.reset_parameters()
    fresh = LAYERS[name]()
    assert torch.equal(run(layer, case, sheaf=maps), run(fresh, case, sheaf=maps))


@pytest.mark.parametrize("name", LAYERS)
def test_masks_of_another_length_are_refused(name):
    case = make_case("identity", 3)
    for length in (0, 11, 13, 24):
        mask = torch.zeros(length, dtype=torch.bool)
        with pytest.raises(ValueError, match=rf"for each of the 12 nodes \(got shape \[{length}\]"):
            run(LAYERS[name](), case, boundary_mask=mask)


MISPLACED = [
    (dict(x=[[0.0]]), "'x' must be a tensor (got list)"),
    (dict(x=None), "'x' must be a tensor (got NoneType)"),
    (dict(edge_index=[[0], [1]]), "'edge_index' must be a tensor, an EdgeIndex"),
    (dict(edge_type=[0]), "'edge_type' must be a tensor (got list)"),
    (dict(edge_weight=[1.0]), "'edge_weight' must be a tensor (got list)"),
    (dict(boundary_mask=[True]), "'boundary_mask' must be a tensor (got list)"),
    (dict(sheaf=torch.zeros(4, WIDTH)), "'sheaf' must be a RelationSheaf"),
    *(
        (name, f"'{name}' must be on the device of 'x', cpu (got meta)")
        for name in ("edge_index", "edge_type", "edge_weight", "boundary_mask")
    ),
    ("x", "'x' is on the device 'meta'"),
]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("changes", "message"), MISPLACED)
def test_what_is_no_tensor_or_lies_elsewhere_is_named(name, changes, message):
    case = make_case("identity", 3)
    if isinstance(changes, str):
        changes = {changes: getattr(case, changes).to("meta")}
    with pytest.raises(ValueError, match=re.escape(message)):
        run(LAYERS[name](), case, **changes)


@pytest.mark.parametrize("name", LAYERS)
def test_maps_on_another_device_are_named(case, name):
    if not case.sheaf.tensors():
        return
    moved = {field: tensor.to("meta") for field, tensor in case.sheaf.tensors().items()}
    with pytest.raises(ValueError, match=r"'sheaf\.\w+' must be on the device of 'x', cpu"):
        run(LAYERS[name](), case, sheaf=dataclasses.replace(case.sheaf, **moved))


@pytest.mark.parametrize("name", LAYERS)
def test_negative_weights_are_refused(name):
    case = make_case("identity")
    with pytest.raises(ValueError, match=r"not negative \(got -0.5 at edge 3\)"):
        run(LAYERS[name](), case, edge_weight=torch.ones(30).index_fill(0, torch.tensor(3), -0.5))


@pytest.mark.parametrize("name", SENDING)
@pytest.mark.parametrize("kind", ["identity", "diagonal, complex pair", "dense, shared"])
def test_function_transforms(kind, name):
    case = make_case(kind, 3)
    layer = LAYERS[name]()

    def apply(x):
        return run(layer, case, x=x)

    other = case.x.flip(0)
    batch = torch.func.vmap(apply)(torch.stack([case.x, other]))
    assert torch.allclose(batch[0], apply(case.x), atol=1e-9)
    assert torch.allclose(batch[1], apply(other), atol=1e-9)
    out, moved = torch.func.jvp(apply, (case.x,), (other,))
    assert torch.allclose(out, apply(case.x), atol=1e-9)
    # The layers are affine.
    assert torch.allclose(moved, apply(case.x + other) - apply(case.x), atol=1e-8)


# Settings ---------------------------------------------------------------------------------------

OTHERS = {
    "step_size": 0.25,
    "normalization": "degree",
    "cached": True,
    "num_iterations": 7,
    "teleport": 0.125,
    "tol": 0.001,
    "diffusion_time": 2.5,
    "eps": 0.01,
    "solver": "cg",
    "max_iterations": 17,
}


@pytest.mark.parametrize("layer", [SheafConv, SheafPropagation, SheafDiffusion, HarmonicExtension])
def test_repr_shows_on_one_line_whatever_is_not_the_default(layer):
    names = {
        name
        for kind in layer.__mro__
        if kind in (SheafConv, SheafPropagation, SheafDiffusion, HarmonicExtension)
        for name in inspect.signature(kind).parameters
    } - {"kwargs"}
    assert names <= OTHERS.keys()
    required = {"diffusion_time": 1.0} if layer is SheafDiffusion else {}
    for name in names:
        text = repr(layer(**(required | {name: OTHERS[name]})))
        assert f"{name}={OTHERS[name]!r}" in text
        assert "\n" not in text
    text = repr(layer(**(required | {name: OTHERS[name] for name in names})))
    assert text.startswith(f"{layer.__name__}(")
    # What is printed makes the layer again.
    assert repr(eval(text)) == text


def test_repr_of_the_defaults():
    assert repr(SheafConv()) == "SheafConv(step_size=0.9, normalization='block')"
    assert repr(SheafPropagation(8, cached=True)) == (
        "SheafPropagation(num_iterations=8, step_size=0.9, normalization='block', cached=True)"
    )
    assert repr(SheafDiffusion(2.5)) == "SheafDiffusion(diffusion_time=2.5, normalization='block')"
    assert repr(HarmonicExtension()) == (
        "HarmonicExtension(solver='auto', tol=1e-06, normalization='block')"
    )


@pytest.mark.parametrize("name", LAYERS)
def test_no_parameters_and_an_empty_state(name):
    layer = LAYERS[name](cached=True)
    run(layer, make_case("identity"))
    assert list(layer.parameters()) == list(layer.buffers()) == []
    assert layer.state_dict() == {}


@pytest.mark.parametrize("name", LAYERS)
def test_what_the_mathematics_fixes_cannot_be_set(name):
    for setting, value in (
        ("aggr", "max"),
        ("flow", "target_to_source"),
        ("node_dim", 0),
        ("decomposed_layers", 2),
    ):
        with pytest.raises(ValueError, match=f"{value}"):
            LAYERS[name](**{setting: value})
