import pytest
import torch
import torch_geometric.typing
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

from sheafprop.errors import DivergenceError
from sheafprop.nn import SheafConv
from sheafprop.nn.graph_input import (
    as_edges,
    check_result,
    from_sections,
    prepare_features,
    round_result,
    to_sections,
    with_free,
)
from sheafprop.sheaf import IdentitySheaf
from sheafprop.sheaf.graph_checks import GraphInput
from tests.sheaf_cases import make_case

EDGE_INDEX = torch.tensor([[2, 0, 2, 1], [0, 1, 0, 2]])
EDGE_TYPE = torch.tensor([1, 0, 2, 1])


def test_plain_tensors_pass_as_they_are():
    edge_index, edge_type = as_edges(EDGE_INDEX, EDGE_TYPE)
    assert edge_index is EDGE_INDEX
    assert edge_type is EDGE_TYPE
    graph = GraphInput(edge_index, edge_type, IdentitySheaf(relations=3))
    assert (graph.edge_weight, graph.boundary_mask) == (None, None)


def test_an_edge_index_keeps_its_own_order():
    index = EdgeIndex(EDGE_INDEX, sparse_size=(3, 3))
    index, permutation = index.sort_by("col")
    edge_index, edge_type = as_edges(index, EDGE_TYPE[permutation])
    assert type(edge_index) is torch.Tensor
    assert torch.equal(edge_index, EDGE_INDEX[:, permutation])
    assert torch.equal(edge_type, EDGE_TYPE[permutation])


@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="needs the extra 'sparse'")
def test_a_sparse_tensor_is_the_transposed_adjacency_with_relations_as_values():
    head, tail = EDGE_INDEX
    adj_t = SparseTensor(row=tail, col=head, value=EDGE_TYPE, sparse_sizes=(3, 3))
    edge_index, edge_type = as_edges(adj_t, None)
    found = sorted(zip(*edge_index.tolist(), edge_type.tolist(), strict=True))
    # Parallel triples stay apart.
    assert found == sorted(zip(*EDGE_INDEX.tolist(), EDGE_TYPE.tolist(), strict=True))
    bare = adj_t.set_value(None)
    assert torch.equal(as_edges(bare, edge_type)[1], edge_type)
    for adj, types, got in ((adj_t, EDGE_TYPE, "both"), (bare, None, "neither")):
        with pytest.raises(ValueError, match=f"got {got}"):
            as_edges(adj, types)
    with pytest.raises(ValueError, match="must be integers"):
        as_edges(adj_t.set_value(EDGE_TYPE.float()), None)
    with pytest.raises(ValueError, match="2 rows, but 'adj_t' is for 3"):
        as_edges(adj_t, None, torch.ones(2, 1))


def test_what_would_be_misread_is_refused():
    with pytest.raises(ValueError, match="'edge_type' is missing"):
        as_edges(EDGE_INDEX, None)
    with pytest.raises(ValueError, match=r"EdgeIndex or a SparseTensor \(got list\)"):
        as_edges([[0], [1]], EDGE_TYPE)
    with pytest.raises(ValueError, match="merge parallel triples"):
        as_edges(torch.eye(3).to_sparse(), None)


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
