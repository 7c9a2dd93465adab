import numpy as np
import pytest

from sheafprop.nn.solvers.column_system import ColumnSystem


@pytest.mark.parametrize("teleport", [0.0, 0.5])
def test_the_matrix_and_its_inverse_on_a_graph_with_an_end_outside(teleport):
    head, tail = np.array([0, 1, 2, -1]), np.array([1, 2, 0, 1])
    head_map, tail_map = np.array([1.0, 2.0, -1.0, 3.0]), np.array([0.5, 1.0, 1.5, 1.0])
    weight, metric = np.array([1.0, 0.5, 2.0, 1.0]), np.array([1.0, 2.0, 3.0])
    system = ColumnSystem(
        head, tail, head_map, tail_map, weight, metric, teleport=teleport, eps=1e-16
    )
    coboundary = np.zeros((4, 3))
    for e in range(4):
        coboundary[e, tail[e]] += np.sqrt(weight[e]) * tail_map[e]
        if head[e] >= 0:
            coboundary[e, head[e]] -= np.sqrt(weight[e]) * head_map[e]
    expected = coboundary.T @ coboundary + teleport * np.diag(metric)
    z = np.eye(3)
    np.testing.assert_allclose(system.apply(z), expected)
    np.testing.assert_allclose(system.solve(system.factor(), z), np.linalg.inv(expected))
    np.testing.assert_allclose(system.scale(z), np.diag(metric))
    assert not system.is_complex


def test_kernel_vectors_of_a_column():
    # Edges 0-1 and 1-2 with gains, a loop that agrees at 3, one that does not at 4, 5 tied.
    system = ColumnSystem(
        np.array([0, 1, 3, 4, -1]),
        np.array([1, 2, 3, 4, 5]),
        np.array([2.0, 3.0, 1.5, 1.0, 1.0]),
        np.array([1.0, 1.0, 1.5, 2.0, 1.0]),
        np.ones(5),
        np.ones(6),
        teleport=0.0,
        eps=1e-16,
    )
    z = np.eye(6)
    matrix = system.apply(z)
    assert np.allclose(matrix, matrix.T)
    kernel = np.zeros((6, 2))
    kernel[:3, 0] = np.array([1, 2, 6]) / np.sqrt(41)
    kernel[3, 1] = 1
    expected = np.linalg.pinv(matrix)
    assert np.allclose(matrix @ kernel, 0)
    assert np.allclose(system.solve(system.factor(), z), expected, atol=1e-12)
    assert np.linalg.matrix_rank(matrix) == 4
