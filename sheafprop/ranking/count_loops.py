"""The comparisons behind ranks, compiled by numba; imported where they first run."""

from sheafprop.kge.difference_loops import compiled


@compiled
def compare_rows(scores, true, better, equal, lo, hi):  # type: ignore[no-untyped-def]
    """How many scores of each row are greater than, and equal to, one value."""
    for row in range(lo, hi):
        own, value = scores[row], true[row]
        above, same = 0, 0
        for column in range(own.size):
            above += own[column] > value
            same += own[column] == value
        better[row], equal[row] = above, same
