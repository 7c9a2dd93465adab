import numpy as np
import pytest

from sheafprop.query import AnswerSets
from sheafprop.query.loops import (
    TILE,
    best_columns,
    count_rows,
    finish_rows,
    raise_rows,
    share_rows,
)


def random_sets(rng, count, size):
    return [set(rng.choice(size, rng.integers(0, size)).tolist()) for _ in range(count)]


@pytest.mark.parametrize("few", [0, 96])
def test_counts_of_targets(few):
    rng = np.random.default_rng(few)
    scores = rng.integers(0, 5, size=(12, 40)).astype(np.float32)
    scores[5, 7] = np.nan
    targets = [own or {1} for own in random_sets(rng, 12, 9)]
    known = [own | more for own, more in zip(targets, random_sets(rng, 12, 40), strict=True)]
    a, b = AnswerSets.from_sets(targets), AnswerSets.from_sets(known)
    out = np.zeros((3, len(a.values)), dtype=np.int64)
    nan = np.zeros(12, dtype=np.bool_)
    count_rows(scores, a.start, a.values, b.start, b.values, *out, few, nan, 0, 12)
    assert np.flatnonzero(nan).tolist() == [5]
    for place, (row, target) in enumerate(zip(a.rows, a.values, strict=True)):
        if row != 5:
            free = np.delete(scores[row], sorted(known[row]))
            own = scores[row, target]
            want = [(free > own).sum(), (free == own).sum(), free.size]
            assert out[:, place].tolist() == want


@pytest.mark.parametrize("shared", [False, True])
def test_finished_rows_hold_roots_or_are_left_alone(shared):
    rng = np.random.default_rng(1)
    energies = rng.uniform(1, 2, size=(4, 6))
    energies[2, 3] = 1e-9 - 0.5 * shared
    table = np.full((1 if shared else 0, 6), 0.5)
    index = np.zeros(4 if shared else 0, dtype=np.int64)
    before, near = energies.copy(), np.zeros(4, dtype=np.bool_)
    total = np.full((4, 9), -3.0)
    start = total.copy()
    finish_rows(energies, table, index, np.full(4, 1e-6), 2.0, near, total, 2, False, 0, 4)
    assert near.tolist() == [False, False, True, False]
    want = start.copy()
    want[:, 2:8] -= 2 * np.sqrt(np.abs(before + 0.5 * shared))
    want[2] = start[2]
    np.testing.assert_allclose(total, want)
    np.testing.assert_allclose(energies[2], before[2] + 0.5 * shared)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_tiles_between_the_bounds_alone_are_raised(count):
    rng = np.random.default_rng(count)
    rows = rng.normal(size=(5, 2 * TILE + 3)).astype(np.float32)
    rows[2] = -np.inf
    before = rng.normal(size=(3, rows.shape[1])).astype(np.float32)
    row, value = rng.integers(0, 5, count + 2), rng.normal(size=count + 2).astype(np.float32)
    query, start = np.array([2, 0]), np.array([0, count, count + 2])
    out = before.copy()
    raise_rows(out, rows, query, start, row, value, 1, 3)
    assert (out[:, :TILE] == before[:, :TILE]).all()
    raise_rows(out, rows, query, start, row, value, 0, 1)
    raised = rows[row] + value[:, None]
    assert (out[2] == np.maximum(before[2], raised[:count].max(0))).all()
    assert (out[0] == np.maximum(before[0], raised[count:].max(0))).all()
    assert (out[1] == before[1]).all()


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


@pytest.mark.parametrize("spread", [0.01, 1, 30, 1000])
def test_shares_are_right_however_far_apart_the_scores(spread):
    rng = np.random.default_rng(0)
    z = (rng.normal(size=(3, 700)) * spread).astype(np.float32)
    rows, bad, outside = z.copy(), np.zeros(3, np.bool_), np.zeros(0, np.bool_)
    one, none = np.float32(1), np.zeros((0, 700), np.float32)
    share_rows(rows, none, one, one, outside, np.zeros(3), np.float32(0), bad, 0, 3)
    exact = z.astype(np.float64)
    exact -= exact.max(1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    np.testing.assert_allclose(rows, exact, rtol=2e-7, atol=5e-7)
