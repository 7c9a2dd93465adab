import numpy as np
import pytest

from sheafprop.kernels import counting_loops


@pytest.mark.parametrize("size", [5, 200])
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_are_sorted_and_equal_entries_keep_their_order(size, weighted):
    draw = np.random.default_rng(size)
    start = np.array([0, size, size, 2 * size])
    src = draw.integers(4, size=2 * size).astype(np.int32)
    label = draw.integers(3, size=2 * size).astype(np.int16)
    weight = np.arange(2.0 * size) if weighted else None
    keys = [(*pair, i) for i, pair in enumerate(zip(src.tolist(), label.tolist(), strict=True))]
    expected = [*sorted(keys[:size]), *sorted(keys[size:])]
    counting_loops.order_rows(start, src, label, weight, 3, 0, 3)
    assert list(zip(src.tolist(), label.tolist(), strict=True)) == [key[:2] for key in expected]
    if weighted:
        assert weight.tolist() == [key[2] for key in expected]


def test_reaching_goes_through_free_vertices_from_anchors_alone():
    # 0 - 1 - 2 in a chain, 3 alone with the known vertex 1, which is no anchor.
    start, src = np.array([0, 1, 3, 4, 4]), np.array([1, 0, 2, 1], np.int32)
    known_start, known_src = np.array([0, 1, 1, 1, 2]), np.array([0, 1], np.int32)
    reached = np.zeros(4, np.bool_)
    counting_loops.reach(known_start, known_src, np.array([True, False]), start, src, reached)
    assert reached.tolist() == [True, True, True, False]


def test_reaching_goes_on_from_marks_behind_the_rows_and_from_what_was_reached_before():
    # 0 - 1 here, 1 beside 3 of the halo, 2 beside 4 of the halo.
    start, src = np.array([0, 1, 3, 4]), np.array([1, 0, 3, 4], np.int32)
    nothing = np.zeros(4, np.int64), np.zeros(0, np.int32), np.zeros(0, np.bool_)
    reached = np.zeros(5, np.bool_)
    counting_loops.reach(*nothing, start, src, reached)
    assert not reached.any()
    reached[3] = True
    counting_loops.reach(*nothing, start, src, reached)
    assert reached.tolist() == [True, True, False, True, False]
    reached[4] = True
    counting_loops.reach(*nothing, start, src, reached)
    assert reached.all()


@pytest.mark.parametrize("place", [None, np.array([10, 11, 12, 13], np.int32)])
def test_rows_are_copied_in_another_order(place):
    start, values = np.array([0, 2, 2, 5]), np.array([3, 1, 0, 2, 1], np.int32)
    out = np.zeros(5, np.int32)
    index, copied = np.array([2, 0, 1]), np.array([0, 3, 5, 5])
    counting_loops.copy_rows(start, values, index, place, copied, out)
    assert out.tolist() == [v + (0 if place is None else 10) for v in (0, 2, 1, 3, 1)]
