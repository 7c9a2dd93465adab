import copy
import pickle
import re

import pytest
import torch
import torch_geometric.typing
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import SparseTensor

from sheafprop.errors import DivergenceError
from sheafprop.nn import (
    HarmonicExtension,
    SheafConv,
    SheafDiffusion,
    SheafPropagation,
    sheaf_conv,
)
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, PropagationPlan
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_case


def options(case):
    return dict(edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)


@pytest.fixture(params=SHEAF_KINDS)
def case(request):
    return make_case(request.param, 3)


@pytest.mark.parametrize("layer", [SheafConv, SheafPropagation])
@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_propagate_alone_gives_the_same_step(case, layer, normalization):
    conv = layer(step_size=0.05, normalization=normalization)
    assert isinstance(conv, MessagePassing)
    fused = SheafConv(step_size=0.05, normalization=normalization)(
        case.x, *case.graph, **options(case)
    )
    plain = conv.propagate(
        case.edge_index, x=case.x, edge_type=case.edge_type, sheaf=case.sheaf, **options(case)
    )
    assert torch.allclose(fused, plain, atol=1e-9)
    assert not torch.allclose(fused, case.x)


def test_message_hooks_and_explainers_see_the_messages(case):
    conv = SheafConv()
    expected = conv(case.x, *case.graph, **options(case))
    seen = []
    handle = conv.register_message_forward_hook(lambda module, inputs, output: seen.append(output))
    assert torch.allclose(conv(case.x, *case.graph, **options(case)), expected, atol=1e-9)
    assert seen[0].shape[:2] == (2, case.edge_type.numel())
    handle.remove()
    conv(case.x, *case.graph, **options(case))
    assert len(seen) == 1


def test_boundary_rows_are_bit_identical(case):
    out = SheafConv()(case.x, *case.graph, **options(case))
    assert torch.equal(out[case.boundary_mask], case.x[case.boundary_mask])
    assert torch.equal(out[-1], case.x[-1]), "an isolated vertex keeps its start"


def test_sections_are_independent(case):
    conv = SheafConv()
    other = case.x.flip(0)
    both = conv(torch.stack([case.x, other]), *case.graph, **options(case))
    assert torch.allclose(both[0], conv(case.x, *case.graph, **options(case)), atol=1e-12)
    assert torch.allclose(both[1], conv(other, *case.graph, **options(case)), atol=1e-12)


def test_order_of_nodes_and_edges_does_not_matter(case):
    conv = SheafConv()
    expected = conv(case.x, *case.graph, **options(case))
    g = torch.Generator().manual_seed(0)
    node = torch.randperm(case.x.shape[0], generator=g)
    edge = torch.randperm(case.edge_type.numel(), generator=g)
    rank = torch.argsort(node)
    out = conv(
        case.x[node],
        rank[case.edge_index[:, edge]],
        case.edge_type[edge],
        case.sheaf,
        edge_weight=case.edge_weight[edge],
        boundary_mask=case.boundary_mask[node],
    )
    assert torch.allclose(out, expected[node], atol=1e-12)


def test_a_weight_counts_copies(case):
    conv = SheafConv()
    weight = torch.ones(case.edge_type.numel(), dtype=torch.float64)
    weight[9] = 3
    expected = conv(case.x, *case.graph, edge_weight=weight)
    edge = torch.cat([torch.arange(case.edge_type.numel()), torch.tensor([9, 9])])
    out = conv(case.x, case.edge_index[:, edge], case.edge_type[edge], case.sheaf)
    assert torch.allclose(out, expected, atol=1e-12)


def test_a_plan_is_reused_and_checked(case):
    conv = SheafConv()
    plan = conv.plan(case.x, *case.graph, **options(case))
    expected = conv(case.x, *case.graph, **options(case))
    assert torch.equal(conv(case.x, *case.graph, plan=plan), expected)
    with pytest.raises(ValueError, match="12 nodes"):
        conv(case.x[:5], *case.graph, plan=plan)
    with pytest.raises(ValueError, match="normalization='block'"):
        SheafConv(normalization=None)(case.x, *case.graph, plan=plan)


def test_no_parameters_and_an_empty_state():
    for layer in (SheafConv(), SheafPropagation()):
        assert list(layer.parameters()) == []
        assert layer.state_dict() == {}


@pytest.mark.parametrize("layer", [SheafConv(), SheafPropagation(3)])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("order", [None, "row", "col"])
def test_edge_index_of_any_order_agrees(case, layer, order, transpose):
    expected = layer(case.x, *case.graph, **options(case))
    n = case.x.shape[0]
    index = EdgeIndex(case.edge_index, sparse_size=(n, n))
    permutation = torch.arange(case.edge_type.numel())
    if order is not None:
        index, permutation = index.sort_by(order)
    index.fill_cache_()
    if transpose:
        # Turned twice: the values are the same, the flag for the order went the other way.
        index = index.flip(0).flip(0)
    out = layer(
        case.x,
        index,
        case.edge_type[permutation],
        case.sheaf,
        edge_weight=case.edge_weight[permutation],
        boundary_mask=case.boundary_mask,
    )
    assert torch.allclose(out, expected, atol=1e-12)
    assert type(out) is torch.Tensor


def test_turning_the_triples_round_is_another_graph(case):
    turned = EdgeIndex(case.edge_index, sparse_size=(12, 12)).flip(0)
    out = SheafConv()(case.x, turned, case.edge_type, case.sheaf)
    expected = SheafConv()(case.x, case.edge_index.flip(0), case.edge_type, case.sheaf)
    assert torch.equal(out, expected)


@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="needs the extra 'sparse'")
def test_sparse_tensor_keeps_parallel_triples_apart(case):
    conv = SheafConv()
    expected = conv(case.x, *case.graph)
    n = case.x.shape[0]
    head, tail = case.edge_index
    adj_t = SparseTensor(row=tail, col=head, value=case.edge_type, sparse_sizes=(n, n))
    assert adj_t.nnz() == case.edge_type.numel()
    assert torch.allclose(conv(case.x, adj_t, None, case.sheaf), expected, atol=1e-12)
    # Ids and weights may also come beside it, in the order of its entries.
    order = (tail * n + head).argsort(stable=True)
    bare = SparseTensor(row=tail[order], col=head[order], sparse_sizes=(n, n))
    weighted = SheafPropagation(3)(
        case.x,
        bare,
        case.edge_type[order],
        case.sheaf,
        edge_weight=case.edge_weight[order],
        boundary_mask=case.boundary_mask,
    )
    reference = SheafPropagation(3)(case.x, *case.graph, **options(case))
    assert torch.allclose(weighted, reference, atol=1e-12)
    with pytest.raises(ValueError, match="got both"):
        conv(case.x, adj_t, case.edge_type, case.sheaf)
    with pytest.raises(ValueError, match="must be integers"):
        conv(case.x, adj_t.set_value(case.edge_weight), None, case.sheaf)
    larger = SparseTensor(row=tail, col=head, value=case.edge_type, sparse_sizes=(n, n + 2))
    with pytest.raises(ValueError, match=f"{n} rows, but 'adj_t' is for {n + 2} vertices"):
        conv(case.x, larger, None, case.sheaf)
    with pytest.raises(ValueError, match="got neither"):
        conv(case.x, adj_t.set_value(None), None, case.sheaf)


def test_native_sparse_tensors_are_refused(case):
    n = case.x.shape[0]
    native = torch.sparse_coo_tensor(case.edge_index, case.edge_type.double(), (n, n))
    merged = native.coalesce()
    layouts = (
        merged.to_sparse_csr(),
        merged.to_sparse_csc(),
        merged.to_sparse_bsr((3, 3)),
        merged.to_sparse_bsc((3, 3)),
    )
    for matrix in (native, *layouts):
        with pytest.raises(ValueError, match="merge parallel triples"):
            SheafConv()(case.x, matrix, case.edge_type, case.sheaf)


@pytest.mark.parametrize("layer", [SheafConv(), SheafPropagation(3, teleport=0.1)])
@pytest.mark.parametrize("kind", [k for k in SHEAF_KINDS if "singular" not in k])
def test_gradients_reach_features_maps_and_translations(kind, layer):
    case = make_case(kind, 6, num_edges=14)
    leaves, spec = torch.utils._pytree.tree_flatten(case.sheaf)
    # A shared map is one tensor: moving its two uses apart would change the rank of D.
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}

    def run(x, *maps):
        moved = dict(zip(tensors, maps, strict=True))
        sheaf = torch.utils._pytree.tree_unflatten([moved.get(id(v), v) for v in leaves], spec)
        return layer(x, case.edge_index, case.edge_type, sheaf, **options(case))

    inputs = [t.clone().requires_grad_() for t in (case.x, *tensors.values())]
    assert torch.autograd.gradcheck(run, inputs, atol=1e-5, fast_mode=True)


def test_gradient_is_finite_at_repeated_eigenvalues():
    maps = torch.eye(WIDTH, dtype=torch.float64).repeat(2, 1, 1).requires_grad_()
    x = torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True)
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    out = SheafConv()(x, edge_index, torch.tensor([0, 1, 0]), DenseSheaf(maps, maps))
    out.square().sum().backward()
    assert torch.isfinite(maps.grad).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("layer", [SheafConv(), SheafPropagation(3)])
def test_number_types_are_kept(layer, kind, double):
    case = make_case(kind, 1)
    expected = layer(case.x, *case.graph, **options(case))
    sheaf, x = case.sheaf, case.x
    if not double:
        leaves, spec = torch.utils._pytree.tree_flatten(sheaf)
        narrow = {torch.float64: torch.float32, torch.complex128: torch.complex64}
        leaves = [v.to(narrow[v.dtype]) if isinstance(v, torch.Tensor) else v for v in leaves]
        sheaf, x = torch.utils._pytree.tree_unflatten(leaves, spec), x.to(narrow[x.dtype])
    out = layer(x, case.edge_index, case.edge_type, sheaf, **options(case))
    assert out.dtype == x.dtype
    assert torch.allclose(out.to(expected.dtype), expected, atol=1e-12 if double else 1e-3)


def test_real_maps_act_on_complex_features():
    case = make_case("diagonal, real pair")
    x = torch.complex(case.x, 2 * case.x.flip(0))
    out = SheafConv()(x, *case.graph)
    shift = SheafConv()(0 * case.x, *case.graph)
    # The translations are real, so they move the real part alone.
    assert torch.allclose(out.real, SheafConv()(x.real, *case.graph), atol=1e-12)
    assert torch.allclose(out.imag, SheafConv()(x.imag, *case.graph) - shift, atol=1e-12)


@pytest.mark.parametrize("layer", [SheafConv(), SheafPropagation(3)])
def test_autocast_and_half_features_keep_their_type(layer):
    case = make_case("dense, pair")
    sheaf = type(case.sheaf)(case.sheaf.head.float(), case.sheaf.tail.float())
    graph = (case.edge_index, case.edge_type, sheaf)
    expected = layer(case.x.float(), *graph)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(case.x.float(), *graph), expected)
    assert layer(case.x.bfloat16(), *graph).dtype == torch.bfloat16
    assert layer(case.x.half(), *graph).dtype == torch.float16


def test_runs_are_deterministic(case):
    for layer in (SheafConv(), SheafPropagation(5)):
        first = layer(case.x, *case.graph, **options(case))
        assert torch.equal(first, layer(case.x, *case.graph, **options(case)))


def test_propagate_takes_no_plan_but_that_of_its_own_call(case):
    layer = SheafConv()
    expected = layer(case.x, *case.graph, **options(case))
    # As another thread would, in the middle of a step on another graph.
    layer._sending = layer.plan(case.x, case.edge_index.flip(0), *case.graph[1:])
    edges = dict(edge_type=case.edge_type, sheaf=case.sheaf) | options(case)
    out = layer.propagate(case.edge_index, x=case.x, **edges)
    assert torch.allclose(out, expected, atol=1e-9)


def test_bad_features_are_named():
    case = make_case("diagonal, unitary")
    conv = SheafConv()
    with pytest.raises(ValueError, match="must be complex"):
        conv(case.x.real, *case.graph)
    with pytest.raises(ValueError, match=r"stalks, 4 \(got 2\)"):
        conv(case.x[:, :2], *case.graph)
    with pytest.raises(ValueError, match="floating point"):
        conv(torch.ones(12, WIDTH, dtype=torch.long), *case.graph)
    with pytest.raises(ValueError, match=r"\[N, F\]"):
        conv(case.x[0], *case.graph)
    with pytest.raises(ValueError, match="'edge_type' is missing"):
        conv(case.x, case.edge_index, None, case.sheaf)


def test_bad_settings_are_named():
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="step_size"):
            SheafConv(step_size=bad)
    with pytest.raises(ValueError, match="aggr"):
        SheafConv(aggr="max")
    with pytest.raises(ValueError, match="flow"):
        SheafConv(flow="target_to_source")


@pytest.mark.parametrize(
    "make",
    [SheafConv, SheafPropagation, HarmonicExtension, lambda **kw: SheafDiffusion(1.0, **kw)],
)
def test_an_unknown_normalization_is_named_at_once(make):
    for bad in ("sym", "none", True):
        with pytest.raises(ValueError, match=f"'block', 'degree' or None .got {bad!r}"):
            make(normalization=bad)


def test_node_without_incoming_messages_is_solved_from_its_outgoing_triple():
    sheaf = IdentitySheaf(torch.tensor([[1.0, 2.0]]))
    x = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    mask = torch.tensor([False, True])
    out = SheafConv(step_size=1.0)(
        x, torch.tensor([[0], [1]]), torch.tensor([0]), sheaf, boundary_mask=mask
    )
    assert torch.allclose(out[0], torch.tensor([4.0, 3.0]))


def test_a_cached_plan_serves_other_features(case, monkeypatch):
    built = []
    monkeypatch.setattr(
        sheaf_conv, "PropagationPlan", lambda *a, **k: built.append(1) or PropagationPlan(*a, **k)
    )
    plain = SheafConv()
    for layer in (SheafConv(cached=True), SheafPropagation(1, cached=True)):
        built.clear()
        for x in (case.x, case.x.flip(0), 2 * case.x):
            out = layer(x, *case.graph, **options(case))
        assert built == [1]
        assert torch.allclose(out, plain(x, *case.graph, **options(case)), atol=1e-12)
        layer.reset_parameters()
        layer(case.x, *case.graph, **options(case))
        assert len(built) == 3, "one for the plain layer, one after the reset"


def test_a_cached_plan_is_refused_elsewhere():
    case = make_case("diagonal, unitary", 3)
    conv = SheafConv(cached=True)
    conv(case.x, *case.graph)
    edge_index, edge_type, sheaf = case.graph
    with pytest.raises(ValueError, match=r"for 12 nodes \(got 13\): call reset_parameters"):
        conv(torch.cat([case.x, case.x[:1]]), edge_index, edge_type, sheaf)
    with pytest.raises(ValueError, match=r"for 30 edges \(got 29\)"):
        conv(case.x, edge_index[:, 1:], edge_type[1:], sheaf)
    with pytest.raises(ValueError, match=r"torch.complex128 features \(got torch.complex64\)"):
        conv(case.x.to(torch.complex64), edge_index, edge_type, DiagonalSheaf(sheaf.head.cfloat()))
    with pytest.raises(ValueError, match="for another sheaf"):
        conv(case.x, edge_index, edge_type, DiagonalSheaf(2 * sheaf.head))
    # The same tensors in a new dataclass are the same sheaf.
    assert torch.equal(
        conv(case.x, edge_index, edge_type, DiagonalSheaf(sheaf.head)),
        SheafConv()(case.x, *case.graph),
    )
    conv.reset_parameters()
    conv(case.x, edge_index[:, 1:], edge_type[1:], sheaf)


def test_layers_are_copied_and_pickled_without_their_plan(case):
    for layer in (SheafConv(cached=True), SheafPropagation(3, cached=True, teleport=0.1)):
        expected = layer(case.x, *case.graph)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert repr(other) == repr(layer)
            assert "\n" not in repr(other)
            assert torch.equal(other(case.x, *case.graph), expected)
            fewer = other.__class__(cached=True)
            fewer(case.x, case.edge_index[:, 2:], case.edge_type[2:], case.sheaf)
        blank = copy.deepcopy(layer)
        blank(case.x, case.edge_index[:, 2:], case.edge_type[2:], case.sheaf)
        assert layer.state_dict() == blank.state_dict() == {}


@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_awkward_graphs(case, normalization):
    conv = SheafConv(step_size=0.05, normalization=normalization)
    none = torch.zeros(2, 0, dtype=torch.long)
    assert torch.equal(conv(case.x, none, none[0], case.sheaf), case.x)
    assert conv(case.x[:0], none, none[0], case.sheaf).shape == (0, WIDTH)
    everyone = torch.ones(12, dtype=torch.bool)
    assert torch.equal(conv(case.x, *case.graph, boundary_mask=everyone), case.x)
    nobody = conv(case.x, *case.graph, boundary_mask=~everyone)
    assert torch.equal(nobody, conv(case.x, *case.graph))
    # Self-loops alone: every other vertex keeps its value, and each loop acts on its own vertex.
    loops = torch.tensor([[4, 4, 7], [4, 4, 7]])
    kinds = torch.tensor([0, 1, 2])
    out = conv(case.x, loops, kinds, case.sheaf)
    assert torch.isfinite(torch.view_as_real(out) if out.is_complex() else out).all()
    others = torch.tensor([v for v in range(12) if v not in (4, 7)])
    assert torch.equal(out[others], case.x[others])
    alone = conv(case.x, loops[:, 2:], kinds[2:], case.sheaf)
    assert torch.allclose(out[7], alone[7], atol=1e-12)
    # A single component: a path through all vertices.
    path = torch.stack([torch.arange(11), torch.arange(1, 12)])
    out = conv(case.x, path, torch.zeros(11, dtype=torch.long), case.sheaf)
    assert torch.isfinite(torch.view_as_real(out) if out.is_complex() else out).all()


def test_an_entity_known_by_its_number_alone_keeps_its_start():
    edge_index, edge_type = torch.tensor([[0, 1, 3, 3], [1, 0, 0, 1]]), torch.tensor([0, 1, 1, 2])
    x = torch.randn(4, WIDTH)
    mask = torch.tensor([True, True, False, False])
    for normalization in ("block", "degree"):
        conv = SheafConv(normalization=normalization)
        plan = conv.plan(x, edge_index, edge_type, IdentitySheaf(relations=3), None, mask)
        assert plan.free_index[plan.isolated].tolist() == [2]
        out = conv(x, edge_index, edge_type, IdentitySheaf(relations=3), boundary_mask=mask)
        assert torch.equal(out[[0, 1, 2]], x[[0, 1, 2]])
        assert torch.isfinite(out).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(edge_index=torch.zeros(30, 2, dtype=torch.long)), r"\[30, 2\]\) \(transpose it\)"),
        (dict(boundary_mask=torch.zeros(14, dtype=torch.bool)), r"12 nodes \(got shape \[14\]\)"),
        (dict(edge_index=torch.full((2, 30), 12)), r"num_nodes - 1 = 11 \(got 12\)"),
        (dict(edge_type=torch.full((30,), 9)), r"num_relations - 1 = 3 \(got 9\)"),
        (dict(edge_type=torch.zeros(31, dtype=torch.long)), r"30 edges \(got shape \[31\]\)"),
        (dict(edge_weight=torch.ones(29)), r"30 edges \(got shape \[29\]\)"),
    ],
)
@pytest.mark.parametrize("layer", [SheafConv, SheafPropagation])
def test_bad_graphs_are_named_before_any_kernel_runs(layer, change, message, monkeypatch):
    case = make_case("dense, pair")
    monkeypatch.setattr(DenseSheaf, "coupling", lambda *_: pytest.fail("a kernel was built"))
    monkeypatch.setattr(DenseSheaf, "vertex_blocks", lambda *_: pytest.fail("D was built"))
    arguments = dict(edge_index=case.edge_index, edge_type=case.edge_type, sheaf=case.sheaf)
    with pytest.raises(ValueError, match=message):
        layer()(case.x, **(arguments | change))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_products_of_ids_beyond_32_bits(dtype):
    # Vertex x relation exceeds 2^31 although each of them fits 32 bits easily.
    num_relations, n = 2**20, 2**12
    assert n * num_relations > 2**31
    g = torch.Generator().manual_seed(0)
    edge_index = torch.randint(n - 20, n, (2, 200), generator=g)
    few = torch.randint(5, (200,), generator=g)
    head, tail = torch.rand(2, 5, 2, generator=g, dtype=torch.float64).unbind(0)
    big = torch.zeros(2, num_relations, 2, dtype=torch.float64)
    big[0, -5:], big[1, -5:] = head, tail
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    expected = SheafConv()(x, edge_index, few, DiagonalSheaf(head, tail))
    kinds = (few + num_relations - 5).to(dtype)
    out = SheafConv()(x, edge_index.to(dtype), kinds, DiagonalSheaf(*big))
    assert torch.allclose(out, expected, atol=1e-12)


# Divergence by too large a step -----------------------------------------------------------------


@pytest.mark.parametrize("normalization", [None, "degree", "block"])
@pytest.mark.parametrize("kind", ["identity", "diagonal", "dense"])
def test_steps_that_diverge_name_the_largest_stable_step(kind, normalization):
    # Two nodes and one triple of maps c I: the Laplacian has the eigenvalues 0 and 2 c^2, the
    # normalized one 0 and 2.
    scale = 1.0 if kind == "identity" else 7.0
    maps = scale * torch.ones(1, 2)
    sheaf = {
        "identity": IdentitySheaf(torch.zeros(1, 2)),
        "diagonal": DiagonalSheaf(maps, maps),
        "dense": DenseSheaf(torch.diag_embed(maps), torch.diag_embed(maps)),
    }[kind]
    graph = torch.tensor([[0], [1]]), torch.tensor([0]), sheaf
    most = 1 / scale**2 if normalization is None else 1.0
    x = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    layer = SheafConv(step_size=3 * most, normalization=normalization)

    def steps(layer, x):
        for _ in range(300):
            x = layer(x, *graph)
        return x

    with pytest.raises(DivergenceError, match=r"2 / lambda_max = ") as error:
        steps(layer, x)
    named = float(re.search(r"lambda_max = ([^ ]+)", str(error.value))[1])
    assert named == pytest.approx(most, rel=1e-3)
    assert "smaller features" not in str(error.value)
    assert steps(SheafConv(step_size=0.9 * named, normalization=normalization), x).isfinite().all()


def test_values_that_overflow_in_a_stable_step_are_not_blamed_on_the_step():
    # The sum of two neighbours is beyond single precision, the step is not too large.
    x = torch.full((3, 1), 3e38)
    edges, kinds = torch.tensor([[0, 1], [2, 2]]), torch.tensor([0, 0])
    with pytest.raises(DivergenceError) as error:
        SheafConv(step_size=0.1, normalization=None)(x, edges, kinds, IdentitySheaf(relations=1))
    assert "lambda_max" not in str(error.value)
