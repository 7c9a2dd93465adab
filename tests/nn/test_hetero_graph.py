import pytest
import torch
import torch_geometric.typing
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import unbatch

from sheafprop.nn import HeteroGraph, SheafConv, SheafPropagation
from sheafprop.sheaf import IdentitySheaf


def hetero() -> HeteroData:
    """Two node types with edges, one without; one relation name between two pairs of types."""
    g = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["author"].x = torch.randn(4, 3, generator=g)
    data["venue"].x = torch.randn(2, 3, generator=g)
    data["paper"].x = torch.randn(5, 3, generator=g)
    data["author"].boundary_mask = torch.tensor([True, False, True, False])
    data["paper"].boundary_mask = torch.tensor([False, True, False, False, False])
    data["venue"].boundary_mask = torch.tensor([False, False])
    data["author", "has", "paper"].edge_index = torch.tensor([[3, 0, 1, 0], [0, 4, 0, 1]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 2, 2], [3, 0, 0]])
    data["paper", "has", "author"].edge_index = torch.tensor([[2, 1], [3, 1]])
    return data


def by_edge_type(data: HeteroData) -> dict:
    return {kind: i for i, kind in enumerate(data.edge_types)}


def sheaf(num_relations: int) -> IdentitySheaf:
    return IdentitySheaf(torch.arange(3.0 * num_relations).view(num_relations, 3) / 7)


def test_equals_to_homogeneous_of_pyg():
    data = hetero()
    graph = HeteroGraph.from_hetero(data, relation_ids=by_edge_type(data))
    other = data.to_homogeneous()
    assert torch.equal(graph.edge_index, other.edge_index)
    assert torch.equal(graph.edge_type, other.edge_type)
    assert torch.equal(graph.x, other.x)
    assert torch.equal(graph.boundary_mask, other.boundary_mask)
    assert graph.num_nodes == other.num_nodes


def test_round_trip_through_to_homogeneous():
    data, layer = hetero(), SheafPropagation(5)
    graph = HeteroGraph.from_hetero(data, relation_ids=by_edge_type(data))
    ours = graph.split(layer(graph.x, *graph.edges, sheaf(3), boundary_mask=graph.boundary_mask))
    other = data.to_homogeneous()
    other.x = layer(
        other.x, other.edge_index, other.edge_type, sheaf(3), boundary_mask=other.boundary_mask
    )
    back = other.to_heterogeneous()
    for kind in data.node_types:
        assert torch.equal(ours[kind], back[kind].x)
    for kind in data.edge_types:
        assert torch.equal(back[kind].edge_index, data[kind].edge_index)


def test_vectors_come_back_in_local_order():
    data = hetero()
    graph = HeteroGraph.from_hetero(data)
    for kind, rows in graph.split(graph.x).items():
        assert torch.equal(rows, data[kind].x)
    sections = torch.stack([graph.x, 2 * graph.x])
    for kind, rows in graph.split(sections).items():
        assert torch.equal(rows, torch.stack([data[kind].x, 2 * data[kind].x]))
    assert torch.equal(graph.join(graph.split(graph.x)), graph.x)
    assert graph.split(graph.boundary_mask)["author"].tolist() == [True, False, True, False]
    out = SheafConv()(graph.x, *graph.edges, sheaf(2), boundary_mask=graph.boundary_mask)
    split = graph.split(out)
    # By hand: paper 4 has one triple, whose head is the known author 0.
    expected = data["author"].x[0] + sheaf(2).translation[0]
    assert torch.allclose(split["paper"][4], 0.1 * data["paper"].x[4] + 0.9 * expected)
    assert torch.equal(split["author"][0], data["author"].x[0])
    assert torch.equal(split["venue"], data["venue"].x), "a type without edges is kept"


def test_one_name_is_one_relation_unless_distinguished():
    data = hetero()
    graph = HeteroGraph.from_hetero(data)
    assert graph.relation_ids == {
        ("author", "has", "paper"): 0,
        ("paper", "cites", "paper"): 1,
        ("paper", "has", "author"): 0,
    }
    assert graph.num_relations == 2
    apart = HeteroGraph.from_hetero(data, relation_ids=by_edge_type(data))
    assert apart.edge_type.tolist() == [0] * 4 + [1] * 3 + [2] * 2
    trained = HeteroGraph.from_hetero(
        data, relation_ids={"has": 6, "cites": 2, ("paper", "has", "author"): 4}
    )
    assert trained.edge_type.tolist() == [6] * 4 + [2] * 3 + [4] * 2
    assert trained.num_relations == 7
    with pytest.raises(ValueError, match=r"relation 'cites' \(got \['has'\]\)"):
        HeteroGraph.from_hetero(data, relation_ids={"has": 0})


def test_types_without_vectors_are_free_and_start_at_zero():
    data = hetero()
    del data["venue"].x, data["venue"].boundary_mask
    data["venue"].num_nodes = 2
    data["paper", "cites", "paper"].edge_weight = torch.tensor([2.0, 0.5, 0.0])
    graph = HeteroGraph.from_hetero(data)
    assert graph.split(graph.x)["venue"].tolist() == [[0.0] * 3] * 2
    assert graph.split(graph.boundary_mask)["venue"].tolist() == [False, False]
    assert graph.edge_weight.tolist() == [1, 1, 1, 1, 2, 0.5, 0, 1, 1]
    for kind in data.node_types:
        del data[kind].x, data[kind].boundary_mask
        data[kind].num_nodes = 5
    empty = HeteroGraph.from_hetero(data)
    assert (empty.x, empty.boundary_mask) == (None, None)
    assert torch.equal(empty.join({"paper": torch.ones(5, 1)}).flatten()[5:10], torch.zeros(5))


def test_features_of_different_widths_are_joined_in_a_model():
    data = hetero()
    data["paper"].x = torch.arange(10.0).view(5, 2)
    with pytest.raises(ValueError, match=r"'x' of 'paper' must be \[5, 3\].*x=None.*graph.join"):
        HeteroGraph.from_hetero(data)
    graph = HeteroGraph.from_hetero(data, x=None)
    assert graph.x is None
    assert graph.num_nodes_of == {"author": 4, "venue": 2, "paper": 5}
    linear = torch.nn.ModuleDict({kind: torch.nn.LazyLinear(3) for kind in ("author", "paper")})
    x = graph.join({kind: linear[kind](data[kind].x) for kind in linear})
    assert torch.equal(graph.split(x)["paper"], linear["paper"](data["paper"].x))
    SheafConv()(x, *graph.edges, sheaf(2)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in linear.parameters())


def test_sizes_are_those_that_pyg_finds(recwarn):
    data = hetero()
    data["paper"].vector = torch.ones(5, 2)
    del data["venue"].x, data["venue"].boundary_mask
    data["venue"].pos = torch.zeros(7, 2)
    graph = HeteroGraph.from_hetero(data, x="vector")
    assert graph.num_nodes_of == {"author": 4, "venue": 7, "paper": 5}
    assert graph.x.sum(1).tolist() == [0.0] * 11 + [2.0] * 5
    del data["venue"].pos
    with pytest.raises(
        ValueError, match=r"set data\['venue'\].num_nodes or data\['venue'\].vector"
    ):
        HeteroGraph.from_hetero(data, x="vector")
    with pytest.raises(ValueError, match=r"num_nodes or data\['venue'\].x"):
        HeteroGraph.from_hetero(data, x=None)
    assert not recwarn.list


@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="needs the extra 'sparse'")
def test_sparse_adjacency_of_an_edge_type():
    data = hetero()
    expected = HeteroGraph.from_hetero(data)
    head, tail = data["author", "has", "paper"].edge_index
    del data["author", "has", "paper"].edge_index
    data["author", "has", "paper"].adj_t = SparseTensor(row=tail, col=head, sparse_sizes=(5, 4))
    graph = HeteroGraph.from_hetero(data)
    outs = [
        SheafConv()(g.x, *g.edges, sheaf(2), boundary_mask=g.boundary_mask)
        for g in (expected, graph)
    ]
    assert torch.allclose(*outs, atol=1e-6)
    store = data["author", "has", "paper"]
    store.adj_t = store.adj_t.set_value(torch.ones(4))
    with pytest.raises(ValueError, match=r"'adj_t'.*holds values"):
        HeteroGraph.from_hetero(data)


def test_batches_come_back_graph_by_graph():
    graphs = [hetero(), hetero()]
    graphs[1]["paper"].x = graphs[1]["paper"].x + 1
    graphs[1]["venue"].x = torch.randn(7, 3)
    graphs[1]["venue"].boundary_mask = torch.zeros(7, dtype=torch.bool)
    batch = Batch.from_data_list(graphs)
    layer = SheafPropagation(3)

    def propagate(data):
        graph = HeteroGraph.from_hetero(data)
        x = torch.stack([graph.x, 2 * graph.x])
        return graph.split(layer(x, *graph.edges, sheaf(2), boundary_mask=graph.boundary_mask))

    whole = {
        kind: unbatch(rows, batch[kind].batch, dim=-2) for kind, rows in propagate(batch).items()
    }
    for number, data in enumerate(graphs):
        for kind, rows in propagate(data).items():
            assert torch.allclose(whole[kind][number], rows, atol=1e-6)


def test_graphs_without_edges():
    data = HeteroData()
    data["a"].x = torch.randn(2, 3)
    graph = HeteroGraph.from_hetero(data)
    assert torch.equal(SheafConv()(graph.x, *graph.edges, sheaf(1)), data["a"].x)
    assert repr(graph) == "HeteroGraph(num_nodes_of={'a': 2}, num_edges=0, num_relations=0)"


@pytest.mark.parametrize(
    ("where", "name", "value", "message"),
    [
        (("paper", "cites", "paper"), "edge_index", torch.zeros(3, 2).long(), r"transpose it"),
        (("paper", "cites", "paper"), "edge_index", torch.full((2, 3), 5), r"5 nodes.*got 5"),
        (("paper", "cites", "paper"), "edge_index", torch.full((2, 3), -1), r"5 nodes.*got -1"),
        (("paper", "cites", "paper"), "edge_index", torch.full((2, 3), 0.5), r"integers.*float32"),
        (("paper", "cites", "paper"), "edge_weight", torch.ones(4), r"be \[3\].*got \[4\]"),
        ("author", "boundary_mask", torch.ones(6, dtype=torch.bool), r"be \[4\].*got \[6\]"),
        ("paper", "x", torch.ones(5, 2), r"'x' of 'paper' must be \[5, 3\].*got \[5, 2\]"),
        ("paper", "x", torch.ones(5, 3).double(), r"type torch.float32.*torch.float64"),
    ],
)
def test_bad_parts_are_named(where, name, value, message):
    data = hetero()
    data[where][name] = value
    with pytest.raises(ValueError, match=message):
        HeteroGraph.from_hetero(data)


@pytest.mark.parametrize("number", [0.5, -1])
def test_relation_ids_that_are_none_are_named(number):
    with pytest.raises(ValueError, match=rf"integers from 0 on \(got {number} for"):
        HeteroGraph.from_hetero(hetero(), relation_ids={"has": 0, "cites": number})


def test_what_is_no_heterogeneous_graph_is_named():
    with pytest.raises(ValueError, match=r"must be a HeteroData \(got Data\)"):
        HeteroGraph.from_hetero(Data(x=torch.ones(2, 3)))


def test_unknown_sizes_and_rows_are_named():
    data = hetero()
    del data["venue"].x
    with pytest.raises(ValueError, match="number of nodes of type 'venue' is unknown"):
        HeteroGraph.from_hetero(data)
    graph = HeteroGraph.from_hetero(hetero())
    with pytest.raises(ValueError, match=r"each of the 11 nodes \(got 10\)"):
        graph.split(torch.ones(10, 3))
    with pytest.raises(ValueError, match=r"got \['editor'\]"):
        graph.join({"editor": torch.ones(2, 3)})
    data = hetero()
    del data["paper", "cites", "paper"].edge_index
    data["paper", "cites", "paper"].edge_weight = torch.ones(3)
    with pytest.raises(ValueError, match="neither 'edge_index' nor 'adj_t'"):
        HeteroGraph.from_hetero(data)
