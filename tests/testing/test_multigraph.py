import torch

from sheafprop.testing import Multigraph


def test_random_graphs_hold_what_they_promise():
    graph = Multigraph.random(3, seed=4)
    head, tail = graph.edge_index
    ends = torch.stack([head, graph.edge_type, tail], dim=1)
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[0, [0, 2]], ends[1, [0, 2]])
    assert ends[0, 1] != ends[1, 1]
    assert torch.equal(ends[3, [0, 2]], ends[0, [2, 0]])
    assert (head == tail)[4:6].all()
    assert graph.edge_weight.min() == 0
    assert 11 not in graph.edge_index
    assert not graph.boundary_mask[11]


def test_another_order_holds_the_same_triples():
    graph = Multigraph.random(3, seed=1)
    other, node = graph.permute(seed=2)
    ends = {
        (*node[pair].tolist(), r)
        for pair, r in zip(other.edge_index.T, other.edge_type.tolist(), strict=True)
    }
    assert ends == {
        (*p, r) for p, r in zip(graph.edge_index.T.tolist(), graph.edge_type.tolist(), strict=True)
    }
    assert torch.equal(other.boundary_mask, graph.boundary_mask[node])
    free = graph.free_coordinates(2)
    assert free.tolist() == [
        2 * v + i for v in range(12) if not graph.boundary_mask[v] for i in (0, 1)
    ]
