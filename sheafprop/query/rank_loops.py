"""The counting behind ranks, compiled by numba; imported where it first runs."""

import numpy as np

from sheafprop.query.set_loops import compiled


@compiled
def count_rows(scores, target_start, targets, known_start, known, better, ties, candidates, lo, hi):  # type: ignore[no-untyped-def]
    """Counts for the targets of rows lo to hi; returns a row with a NaN, or -1.

    Columns in ``known`` are no candidates; the targets are among them.
    """
    width = scores.shape[1]
    mark = np.zeros(width, dtype=np.bool_)
    for row in range(lo, hi):
        first, last = target_start[row], target_start[row + 1]
        count = last - first
        if count == 0:
            continue
        values = np.empty(count, dtype=scores.dtype)
        for i in range(count):
            values[i] = scores[row, targets[first + i]]
            if np.isnan(values[i]):
                return row
        order = np.argsort(values)
        values = values[order]
        left = width
        for i in range(known_start[row], known_start[row + 1]):
            left -= not mark[known[i]]
            mark[known[i]] = True
        # How many candidates are better than exactly the first n targets, or equal to the next.
        above = np.zeros(count + 1, dtype=np.int64)
        equal = np.zeros(count + 1, dtype=np.int64)
        lowest = values[0]
        for column in range(width):
            score = scores[row, column]
            if score < lowest or mark[column]:
                continue
            if np.isnan(score):
                return row
            # Branchless: the comparisons cannot be predicted.
            place, size = 0, count
            while size > 1:
                half = size >> 1
                place += half * (values[place + half - 1] < score)
                size -= half
            place += values[place] < score
            above[place] += 1
            equal[place] += place < count and values[min(place, count - 1)] == score
        for i in range(known_start[row], known_start[row + 1]):
            mark[known[i]] = False
        total, tied = 0, 0
        for i in range(count - 1, -1, -1):
            total += above[i + 1]
            better[first + order[i]] = total
            candidates[first + order[i]] = left
        for i in range(count):
            if i == 0 or values[i] != values[i - 1]:
                tied = equal[i]
            ties[first + order[i]] = tied
    return -1
