import pytest
import torch
import torch_geometric.typing
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

from sheafprop.nn.graph_input import GraphInput, as_edges
from sheafprop.sheaf import IdentitySheaf

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
