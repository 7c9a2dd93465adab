import pytest
import torch

from sheafprop.sheaf import IdentitySheaf
from sheafprop.testing import Multigraph, dense_coboundary, dense_laplacian, dense_metric
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, dense_system, make_case


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


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_dense_laplacian_agrees_with_another_build(kind):
    case = make_case(kind, 2)
    graph = Multigraph(case.edge_index, case.edge_type, case.edge_weight, case.boundary_mask)
    expected, *_ = dense_system(case, "block")
    assert torch.allclose(dense_laplacian(graph, case.sheaf, WIDTH), expected, atol=1e-12)


def test_one_triple_by_hand():
    graph = Multigraph(
        torch.tensor([[0], [1]]),
        torch.tensor([0]),
        torch.tensor([4.0], dtype=torch.float64),
        torch.tensor([False, False]),
    )
    sheaf = IdentitySheaf(torch.tensor([[3.0]], dtype=torch.float64))
    delta, b = dense_coboundary(graph, sheaf, 1)
    assert delta.tolist() == [[-2, 2]]
    assert b.tolist() == [6]
    assert dense_laplacian(graph, sheaf, 1).tolist() == [[4, -4], [-4, 4]]
    for normalization, diagonal in (("block", 4), ("degree", 4), (None, 1)):
        assert dense_metric(graph, sheaf, 1, normalization).diagonal().tolist() == [diagonal] * 2
