import pytest
import torch

from sheafprop.sheaf import IdentitySheaf
from sheafprop.testing import Multigraph, dense_coboundary, dense_laplacian, dense_metric
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, dense_system, make_case


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
