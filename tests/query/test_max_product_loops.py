import numpy as np

from sheafprop.query.max_product_loops import best_columns, raise_rows


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
