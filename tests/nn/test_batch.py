import pytest
import torch
from torch_geometric.data import Batch, Data

from sheafprop.data import KnowledgeGraph
from sheafprop.nn import HeteroGraph, SheafConv, SheafPropagation, unbatch, unbatch_hetero
from sheafprop.sheaf import IdentitySheaf
from tests.sheaf_cases import make_case

from .test_hetero_graph import hetero, sheaf


def test_a_batch_is_its_graphs_side_by_side():
    cases = [make_case("diagonal, unitary", seed, num_edges=20 + seed) for seed in range(3)]
    shared = cases[0].sheaf
    graphs = [
        Data(x=c.x, edge_index=c.edge_index, edge_type=c.edge_type, boundary_mask=c.boundary_mask)
        for c in cases
    ]
    batch = Batch.from_data_list(graphs)
    layer = SheafPropagation(3)
    out = layer(
        batch.x, batch.edge_index, batch.edge_type, shared, boundary_mask=batch.boundary_mask
    )
    for case, rows in zip(cases, unbatch(out, batch), strict=True):
        alone = layer(
            case.x, case.edge_index, case.edge_type, shared, boundary_mask=case.boundary_mask
        )
        assert torch.allclose(rows, alone, atol=1e-12)
    sections = unbatch(torch.stack([out, 2 * out]), batch)
    assert torch.equal(sections[1][1], 2 * unbatch(out, batch)[1])
    with pytest.raises(ValueError, match=r"each of the 36 nodes \(got 35\)"):
        unbatch(out[1:], batch)


def test_batches_of_knowledge_graphs_and_of_single_nodes():
    graphs = [
        KnowledgeGraph.from_labels([("a", "likes", "b"), ("b", "likes", "a")]),
        KnowledgeGraph.from_labels([("c", "likes", "c")]),
    ]
    batch = Batch.from_data_list(graphs)
    x = torch.arange(9.0).view(3, 3)
    out = SheafConv()(x, batch.edge_index, batch.edge_type, IdentitySheaf(relations=1))
    first, second = unbatch(out, batch)
    assert first.shape == (2, 3)
    assert torch.equal(second, x[2:])


def test_batches_of_heterogeneous_graphs():
    graphs = [hetero(), hetero()]
    graphs[1]["paper"].x = graphs[1]["paper"].x + 1
    graphs[1]["venue"].x = torch.randn(7, 3)
    graphs[1]["venue"].boundary_mask = torch.zeros(7, dtype=torch.bool)
    batch = Batch.from_data_list(graphs)
    layer = SheafPropagation(3)

    def propagate(data):
        graph = HeteroGraph.from_hetero(data)
        out = layer(graph.x, *graph.edges, sheaf(2), boundary_mask=graph.boundary_mask)
        return graph, out

    whole, out = propagate(batch)
    for data, parts in zip(graphs, unbatch_hetero(out, whole, batch), strict=True):
        graph, alone = propagate(data)
        for kind, rows in graph.split(alone).items():
            assert torch.allclose(parts[kind], rows, atol=1e-6)
    with pytest.raises(ValueError, match="unbatch_hetero"):
        unbatch(out, batch)


def test_one_graph_is_no_batch():
    data = hetero()
    graph = HeteroGraph.from_hetero(data)
    with pytest.raises(ValueError, match="got HeteroData, one graph"):
        unbatch_hetero(graph.x, graph, data)
    with pytest.raises(ValueError, match="got Data, one graph"):
        unbatch(graph.x, Data(x=graph.x))
