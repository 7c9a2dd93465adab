import pytest
import torch

from sheafprop.nn import Proximity, proximity
from tests.nn.walk_cases import transition_matrix, walk

GRAPH = torch.tensor([[0, 1, 2, 2, 4, 5, 5, 0, 6, 1], [1, 2, 0, 3, 2, 2, 5, 1, 3, 1]])
SIZE = 9  # 7 and 8 have no edges; 5 and 1 have a loop


@pytest.mark.parametrize("teleport", [0.15, 0.6])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_k_steps_are_those_of_the_walk(teleport, weighted, steps):
    weight = torch.rand(GRAPH.shape[1]) + 0.1 if weighted else None
    expected = walk(transition_matrix(GRAPH, SIZE, weight), teleport, steps)
    found = proximity(
        GRAPH, SIZE, edge_weight=weight, teleport=teleport, num_iterations=steps
    ).double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("teleport", [0.15, 0.4])
def test_the_limit_is_the_inverse(teleport):
    p, one = transition_matrix(GRAPH, SIZE), torch.eye(SIZE, dtype=torch.float64)
    expected = teleport * torch.linalg.inv(one - (1 - teleport) * p)
    found = proximity(GRAPH, SIZE, teleport=teleport, num_iterations=None).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_rows_are_distributions_of_single_sources_too():
    near = Proximity(GRAPH, SIZE)
    rows = near(torch.tensor([8, 3, 3]))
    torch.testing.assert_close(rows.sum(1), torch.ones(3))
    assert rows[0].tolist() == [0.0] * 8 + [1.0]
    assert torch.equal(rows[1], rows[2])
    torch.testing.assert_close(rows[1], near(torch.arange(SIZE))[3])


def test_direction_of_edges_plays_no_part():
    torch.testing.assert_close(proximity(GRAPH, SIZE), proximity(GRAPH.flip(0), SIZE))


def test_no_sources_give_no_rows():
    assert proximity(GRAPH, SIZE, torch.empty(0, dtype=torch.long)).shape == (0, SIZE)


@pytest.mark.parametrize("teleport", [0.0, 1.0, float("nan")])
def test_refuses_a_teleport_that_is_no_probability(teleport):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Proximity(GRAPH, SIZE, teleport=teleport)
