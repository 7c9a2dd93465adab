import numpy as np

from sheafprop.query.max_product_loops import best_columns, raise_rows, share_rows


def test_rows_between_the_bounds_alone_are_written():
    out, rows = np.zeros((3, 2)), np.array([[1.0, -5.0], [-1.0, 4.0]])
    query, start = np.array([0, 2]), np.array([0, 1, 3])
    raise_rows(out, rows, query, start, np.array([0, 0, 1]), np.array([0.5, 1.0, 2.0]), 1, 2)
    assert out.tolist() == [[0, 0], [0, 0], [2, 6]]
    raise_rows(out, rows, query, start, np.array([0, 0, 1]), np.array([0.5, 1.0, 2.0]), 0, 1)
    assert out.tolist() == [[1.5, 0], [0, 0], [2, 6]]


def test_columns_of_rows_between_the_bounds_alone_are_found():
    values = np.array([[1.0, 3.0, 3.0], [2.0, -np.inf, -np.inf]])
    entity, best, following = np.full((2, 2), 9), np.full((2, 2), 9.0), np.full(2, 9.0)
    best_columns(values, 2, entity, best, following, 1, 2)
    assert (entity[0] == 9).all()
    assert following.tolist() == [9, -np.inf]
    assert best[1].tolist() == [2, -np.inf]
    assert entity[1, 0] == 0
    best_columns(values, 2, entity, best, following, 0, 1)
    assert sorted(entity[0].tolist()) == [1, 2]
    assert following[0] == 1


def test_shares_of_rows_between_the_bounds_alone_are_written():
    z = np.array([[0, 1, -1, 0.5], [3, 3, 3, 3], [-np.inf] * 4, [0, np.nan, 0, 0]], np.float32)
    rows, bad = z.copy(), np.zeros(4, np.bool_)
    outside, none = np.array([False, False, True, False]), np.zeros((0, 4), np.float32)
    numbers = (np.float32(2), np.float32(0), outside, np.zeros(4), np.float32(-0.7), bad)
    share_rows(rows, none, *numbers, 0, 1)
    assert (rows[1] == 3).all()
    share_rows(rows, none, *numbers, 1, 4)
    total = np.exp([0, 2, 1]).sum()
    wanted = np.log(np.exp([0, 2, 1]) / total).clip(max=-0.7)
    np.testing.assert_allclose(rows[0, [0, 1, 3]], wanted, rtol=1e-6)
    np.testing.assert_allclose(rows[1, [0, 1, 3]], -np.log(3), rtol=1e-6)
    assert (rows[:3, 2] == -np.inf).all()
    assert (rows[2] == -np.inf).all()
    assert bad.tolist() == [False, False, False, True]
