import numpy as np
import pytest

from sheafprop.query import AnswerSets
from sheafprop.query.loops import count_rows, finish_rows


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
