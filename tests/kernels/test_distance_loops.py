"""Each loop against the same numbers from numpy."""

import numpy as np
import pytest

from sheafprop.kernels import distance_loops


@pytest.fixture
def draw():
    return np.random.default_rng(0).standard_normal


def test_lengths_of_differences(draw):
    a, b = draw((4, 5)), draw((6, 5))
    in_a, in_b = np.array([0, 3, 3, 1, 2]), np.array([5, 0, 1, 1, 4])
    out = np.full(5, np.nan)
    distance_loops.lengths(a, b, in_a, in_b, out, 0, 3)
    assert np.isnan(out[3:]).all()
    distance_loops.lengths(a, b, in_a, in_b, out, 3, 5)
    np.testing.assert_allclose(out, np.linalg.norm(a[in_a] - b[in_b], axis=1))


def test_weighted_sums_of_differences(draw):
    start, order = np.array([0, 3, 3, 4, 8]), np.array([2, 0, 5, 1, 7, 6, 4, 3])
    weight, a, b = draw(8), draw((4, 5)), draw((6, 5))
    in_b = np.array([0, 5, 2, 2, 1, 3, 4, 0])
    out = np.full((4, 5), np.nan)
    distance_loops.weighted_sums(start, order, weight, a, b, in_b, out, 0, 4)
    for v in range(4):
        entries = order[start[v] : start[v + 1]]
        expected = (weight[entries, None] * (a[v] - b[in_b[entries]])).sum(0)
        np.testing.assert_allclose(out[v], expected)


def test_rows_under_matrices_and_the_gradient_of_these(draw):
    table, group, x = draw((3, 4, 5)), np.array([2, 0, 2]), draw((6, 4))
    out = np.full((6, 5), np.nan)
    distance_loops.map_rows(table, group, x, out, 0, 6)
    np.testing.assert_allclose(out, np.einsum("ij,ijk->ik", x, table[np.repeat(group, 2)]))
    start, order = np.array([0, 1, 1, 3]), np.array([1, 0, 2])
    sums = np.full((3, 4, 5), np.nan)
    distance_loops.sums_of_products(2, start, order, x, out, sums, 0, 3)
    products = np.einsum("ij,ik->ijk", x, out).reshape(3, 2, 4, 5).sum(1)
    np.testing.assert_allclose(
        sums, np.stack([products[1], 0 * products[0], products[[0, 2]].sum(0)])
    )


def test_squares_under_scales(draw):
    rows, scale, target = draw((6, 5)), draw((3, 5)), draw((3, 5))
    out = np.full((3, 6), np.nan)
    distance_loops.scaled_squares(rows, scale, target, out, 0, 6)
    difference = scale[:, None] * rows - target[:, None]
    np.testing.assert_allclose(out, (difference**2).sum(2))


def test_counts_of_greater_and_equal_scores():
    scores = np.array([[1.0, 3.0, 2.0, 2.0], [0.0, 0.0, 0.0, -1.0]])
    true = np.array([2.0, 0.0])
    better, equal = np.zeros(2, np.int64), np.zeros(2, np.int64)
    distance_loops.compare_rows(scores, true, better, equal, 0, 2)
    assert better.tolist() == [1, 0]
    assert equal.tolist() == [2, 3]
