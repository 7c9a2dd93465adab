"""Compiled and exported layers against the eager ones."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_geometric import EdgeIndex

from sheafprop.nn import HarmonicExtension, SheafConv, SheafDiffusion, SheafPropagation
from sheafprop.nn.traced import TracedPropagation
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf
from sheafprop.sheaf.graph_checks import GraphInput
from tests.sheaf_cases import SHEAF_KINDS, make_case


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
    torch._dynamo.reset()


def options(case):
    return dict(edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)


def assert_compiles(layer, case, backend="aot_eager", **more):
    eager = layer(case.x, *case.graph, **more)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    out = compiled(case.x, *case.graph, **more)
    assert torch.allclose(out, eager, rtol=0, atol=1e-10)
    assert not torch.allclose(out, case.x.expand_as(out))


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_a_compiled_step_is_the_eager_one(kind):
    case = make_case(kind, 3)
    assert_compiles(SheafConv(), case, **options(case))


def test_the_default_backend_compiles_too():
    case = make_case("identity", 3)
    assert_compiles(SheafConv(), case, "inductor", **options(case))


@pytest.mark.parametrize("order", [None, "col"])
def test_a_compiled_layer_takes_an_edge_index(order):
    case = make_case("diagonal, unitary", 3)
    index = EdgeIndex(case.edge_index, sparse_size=(12, 12))
    if order:
        index, permutation = index.sort_by(order)
        case.edge_type = case.edge_type[permutation]
    case.edge_index = index
    assert_compiles(SheafConv(), case, boundary_mask=case.boundary_mask)


@pytest.mark.parametrize("kind", ["identity", "diagonal, singular", "dense, tall complex"])
@pytest.mark.parametrize("normalization", ["degree", None])
def test_other_normalizations_compile(kind, normalization):
    case = make_case(kind, 3)
    layer = SheafPropagation(2, step_size=0.01, normalization=normalization)
    assert_compiles(layer, case, **options(case))


def test_a_pull_to_the_start_compiles():
    case = make_case("diagonal, complex pair", 3)
    assert_compiles(SheafPropagation(3, teleport=0.3), case, **options(case))


def test_no_boundary_no_weights_and_sections():
    case = make_case("dense, shared", 3)
    case.x = torch.stack([case.x, case.x.flip(0)])
    assert_compiles(SheafPropagation(2), case)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("normalization", ["block", "degree", None])
@pytest.mark.parametrize("boundary", [0.0, 0.3, 1.1])
def test_traced_steps_equal_those_of_the_plan(kind, normalization, boundary):
    for seed in range(3):
        case = make_case(kind, seed, boundary=boundary)
        case.boundary_mask[-1] = boundary > 1
        layer = SheafConv(step_size=0.05, normalization=normalization)
        eager = layer(case.x, *case.graph, **options(case))
        graph = GraphInput(*case.graph, **options(case))
        traced = TracedPropagation(graph, 12, normalization=normalization, dtype=case.x.dtype)
        assert torch.allclose(traced.step(case.x, 0.05), eager, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["identity", "diagonal, unitary", "dense, shared"])
def test_gradients_of_a_compiled_step(kind):
    case = make_case(kind, 3)
    gradients = []
    layer = SheafPropagation(2)
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        leaves, spec = torch.utils._pytree.tree_flatten(case.sheaf)
        moved = {id(v): v.clone().requires_grad_() for v in leaves if isinstance(v, torch.Tensor)}
        sheaf = torch.utils._pytree.tree_unflatten([moved.get(id(v), v) for v in leaves], spec)
        x = case.x.clone().requires_grad_()
        out = function(x, case.edge_index, case.edge_type, sheaf, **options(case))
        out.abs().square().sum().backward()
        gradients.append([x.grad, *(v.grad for v in moved.values())])
    for eager, compiled in zip(*gradients, strict=True):
        assert torch.allclose(eager, compiled, atol=1e-10)


def test_one_compilation_serves_graphs_of_other_sizes():
    layer = SheafConv()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for seed, num_edges in ((1, 30), (2, 17), (3, 44)):
        case = make_case("diagonal, real pair", seed, num_edges=num_edges)
        out = compiled(case.x, *case.graph, boundary_mask=case.boundary_mask)
        eager = layer(case.x, *case.graph, boundary_mask=case.boundary_mask)
        assert torch.allclose(out, eager, atol=1e-10)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "kind", ["identity", "identity, untranslated", "diagonal, unitary", "dense, shared"]
)
def test_export_with_a_sheaf_as_input(kind, strict):
    case, other = make_case(kind, 3), make_case(kind, 5)
    layer = SheafPropagation(2)
    program = torch.export.export(layer, (case.x, *case.graph), options(case), strict=strict)
    # Another sheaf, other features, another boundary: none of them was baked in.
    out = program.module()(other.x, *other.graph, **options(other))
    assert torch.allclose(out, layer(other.x, *other.graph, **options(other)), atol=1e-10)


@pytest.mark.parametrize("kind", ["identity", "diagonal, complex pair", "dense, shared"])
@pytest.mark.parametrize(
    "settings", [dict(), dict(teleport=0.2, normalization="degree", diffusion_time=0.0)]
)
def test_diffusion_compiles_and_exports(kind, settings):
    case, other = make_case(kind, 3), make_case(kind, 5)
    layer = SheafDiffusion(**dict(diffusion_time=0.5, eps=1e-3) | settings)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        eager = layer(case.x, *case.graph, **options(case))
        assert torch.allclose(compiled(case.x, *case.graph, **options(case)), eager, atol=1e-10)
        # The weights of the expansion are numbers of the layer: another time compiles anew.
        layer.diffusion_time += 0.4
    program = torch.export.export(layer, (case.x, *case.graph), options(case), strict=False)
    out = program.module()(other.x, *other.graph, **options(other))
    assert torch.allclose(out, layer(other.x, *other.graph, **options(other)), atol=1e-10)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_layers_with_loops_that_depend_on_data_break_the_graph(kind):
    case = make_case(kind, 3)
    for layer in (
        HarmonicExtension("cg"),
        HarmonicExtension("direct"),
        SheafDiffusion(2.0, normalization=None),
    ):
        compiled = torch.compile(layer, backend="aot_eager")
        out = compiled(case.x, *case.graph, **options(case))
        assert torch.equal(out, layer(case.x, *case.graph, **options(case)))
    layer = HarmonicExtension("cg")
    compiled = torch.compile(layer, backend="aot_eager")
    out, result = compiled(case.x, *case.graph, **options(case), return_result=True)
    _, expected = layer(case.x, *case.graph, **options(case), return_result=True)
    assert result == expected


@pytest.mark.parametrize("layer", [SheafConv(), SheafPropagation(2), SheafDiffusion(0.5, eps=1e-3)])
def test_compiled_layers_promote_number_types(layer):
    for kind, half in (("dense, pair", torch.float16), ("diagonal, real pair", torch.bfloat16)):
        case = make_case(kind, 3)
        case.sheaf = case.sheaf.promote(half)
        case.x = case.x.float()
        eager = layer(case.x, *case.graph, **options(case))
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        out = compiled(case.x, *case.graph, **options(case))
        assert out.dtype == eager.dtype == torch.float32
        assert torch.allclose(out, eager, atol=1e-4)
        mixed = make_case(kind, 3)
        mixed.x = torch.complex(mixed.x, mixed.x.flip(0))
        assert_compiles(layer, mixed, **options(mixed))


def test_compiled_layers_with_hooks_send_their_messages():
    case = make_case("identity", 3)
    layer = SheafPropagation(3)
    expected = layer(case.x, *case.graph, **options(case))
    seen = []
    layer.register_message_forward_hook(lambda *_: seen.append(1))
    out = torch.compile(layer, backend="aot_eager")(case.x, *case.graph, **options(case))
    assert torch.allclose(out, expected, atol=1e-12)
    assert len(seen) == 3


def test_what_cannot_be_traced_runs_as_it_does_eagerly():
    case = make_case("diagonal, unitary", 3)
    layer = SheafPropagation(30, tol=1e-3)
    compiled = torch.compile(layer, backend="aot_eager")
    out = compiled(case.x, *case.graph, **options(case))
    assert torch.equal(out, layer(case.x, *case.graph, **options(case)))
    conv = SheafConv()
    plan = conv.plan(case.x, *case.graph, **options(case))
    out = torch.compile(conv, backend="aot_eager")(case.x, *case.graph, plan=plan)
    assert torch.equal(out, conv(case.x, *case.graph, plan=plan))


def test_sizes_beyond_32_bits_stay_whole():
    # Nothing is computed or allocated: fake tensors carry shapes and types.
    num_nodes, num_edges, num_relations, width = 2**24, 2**26, 500, 256
    assert num_edges * width > 2**31
    with FakeTensorMode():
        edge_index = torch.zeros(2, num_edges, dtype=torch.int32)
        edge_type = torch.zeros(num_edges, dtype=torch.int32)
        x = torch.zeros(num_nodes, width)
        maps = torch.zeros(num_relations, width, width)
        for sheaf in (
            IdentitySheaf(maps[0, :1].expand(num_relations, -1)),
            DiagonalSheaf(maps[:, 0]),
            DenseSheaf(maps, maps),
        ):
            graph = GraphInput(edge_index, edge_type, sheaf)
            traced = TracedPropagation(graph, num_nodes, normalization="degree", dtype=x.dtype)
            assert traced.step(x, 0.9).shape == x.shape
            assert {t.dtype for t in (traced._head, traced._edge_type)} == {torch.int64}


@pytest.mark.parametrize("layer", [SheafConv(), SheafPropagation(2), SheafDiffusion(1.0)])
def test_a_weight_that_wants_a_gradient_is_refused(layer):
    case = make_case("identity", 3)
    weight = case.edge_weight.clone().requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="'edge_weight' are not offered"):
        compiled(case.x, *case.graph, edge_weight=weight)
