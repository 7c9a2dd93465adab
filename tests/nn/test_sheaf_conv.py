import pytest
import torch
import torch_geometric.typing
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import SparseTensor

from sheafprop.nn import SheafConv, SheafPropagation
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf
from tests.sheaf_cases import SHEAF_KINDS, make_case


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


def test_edge_index_and_sorted_edge_index_agree(case):
    conv = SheafConv()
    expected = conv(case.x, *case.graph)
    for order in ("row", "col"):
        n = case.x.shape[0]
        index, permutation = EdgeIndex(case.edge_index, sparse_size=(n, n)).sort_by(order)
        out = conv(case.x, index, case.edge_type[permutation], case.sheaf)
        assert torch.allclose(out, expected, atol=1e-12)
        assert not isinstance(out, EdgeIndex)


@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="needs the extra 'sparse'")
def test_sparse_tensor_keeps_parallel_triples_apart(case):
    conv = SheafConv()
    expected = conv(case.x, *case.graph)
    n = case.x.shape[0]
    head, tail = case.edge_index
    adj_t = SparseTensor(row=tail, col=head, value=case.edge_type, sparse_sizes=(n, n))
    assert adj_t.nnz() == case.edge_type.numel()
    assert torch.allclose(conv(case.x, adj_t, None, case.sheaf), expected, atol=1e-12)
    with pytest.raises(ValueError, match="got both"):
        conv(case.x, adj_t, case.edge_type, case.sheaf)
    with pytest.raises(ValueError, match="got neither"):
        conv(case.x, adj_t.set_value(None), None, case.sheaf)


def test_native_sparse_tensors_are_refused(case):
    n = case.x.shape[0]
    native = torch.sparse_coo_tensor(case.edge_index, case.edge_type.double(), (n, n))
    for matrix in (native, native.coalesce().to_sparse_csr()):
        with pytest.raises(ValueError, match="merge parallel triples"):
            SheafConv()(case.x, matrix, case.edge_type, case.sheaf)


@pytest.mark.parametrize("kind", [k for k in SHEAF_KINDS if "singular" not in k])
def test_gradients_reach_features_maps_and_translations(kind):
    case = make_case(kind, 6, num_edges=14)
    leaves, spec = torch.utils._pytree.tree_flatten(case.sheaf)
    # A shared map is one tensor: moving its two uses apart would change the rank of D.
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}

    def step(x, *maps):
        moved = dict(zip(tensors, maps, strict=True))
        sheaf = torch.utils._pytree.tree_unflatten([moved.get(id(v), v) for v in leaves], spec)
        return SheafConv()(x, case.edge_index, case.edge_type, sheaf, **options(case))

    inputs = [t.clone().requires_grad_() for t in (case.x, *tensors.values())]
    assert torch.autograd.gradcheck(step, inputs, atol=1e-5)


def test_gradient_is_finite_at_repeated_eigenvalues():
    maps = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1).requires_grad_()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    out = SheafConv()(x, edge_index, torch.tensor([0, 1, 0]), DenseSheaf(maps, maps))
    out.square().sum().backward()
    assert torch.isfinite(maps.grad).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_number_types_are_kept(dtype):
    case = make_case("diagonal, real pair")
    sheaf = DiagonalSheaf(case.sheaf.head.to(dtype), case.sheaf.tail.to(dtype))
    out = SheafConv()(case.x.to(dtype), case.edge_index, case.edge_type, sheaf)
    assert out.dtype == dtype


def test_autocast_and_half_features_stay_in_single_precision():
    case = make_case("dense, pair")
    sheaf = type(case.sheaf)(case.sheaf.head.float(), case.sheaf.tail.float())
    graph = (case.edge_index, case.edge_type, sheaf)
    expected = SheafConv()(case.x.float(), *graph)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(SheafConv()(case.x.float(), *graph), expected)
    assert SheafConv()(case.x.bfloat16(), *graph).dtype == torch.float32


def test_runs_are_deterministic(case):
    first = SheafConv()(case.x, *case.graph, **options(case))
    assert torch.equal(first, SheafConv()(case.x, *case.graph, **options(case)))


def test_bad_features_are_named():
    case = make_case("diagonal, unitary")
    conv = SheafConv()
    with pytest.raises(ValueError, match="must be complex"):
        conv(case.x.real, *case.graph)
    with pytest.raises(ValueError, match=r"stalks, 3 \(got 2\)"):
        conv(case.x[:, :2], *case.graph)
    with pytest.raises(ValueError, match="floating point"):
        conv(torch.ones(12, 3, dtype=torch.long), *case.graph)
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


def test_node_without_incoming_messages_is_solved_from_its_outgoing_triple():
    sheaf = IdentitySheaf(torch.tensor([[1.0, 2.0]]))
    x = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    mask = torch.tensor([False, True])
    out = SheafConv(step_size=1.0)(
        x, torch.tensor([[0], [1]]), torch.tensor([0]), sheaf, boundary_mask=mask
    )
    assert torch.allclose(out[0], torch.tensor([4.0, 3.0]))


def test_repr_is_one_line():
    assert repr(SheafConv()) == "SheafConv(step_size=0.9, normalization='block')"
