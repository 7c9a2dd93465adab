"""Loops over energies and scores, compiled by numba; imported where they first run."""

import numpy as np

from sheafprop.kernels.numba_loops import compile_loops

# Sums keep their order.
_compiled = compile_loops()


@_compiled
def finish_rows(energies, shared, index, limit, weight, near, total, first, fresh, lo, hi):  # type: ignore[no-untyped-def]
    """Adds what queries share and subtracts the roots from ``total``, from column ``first`` on.

    Where ``fresh``, ``total`` counts as zero. Rows with an energy up to their limit are left as
    energies, and marked.
    """
    for row in range(lo, hi):
        own = energies[row]
        least = own[0]
        if shared.shape[0] > 0:
            more = shared[index[row]]
            least = own[0] + more[0]
            for column in range(own.size):
                own[column] += more[column]
                least = min(least, own[column])
        else:
            for column in range(own.size):
                least = min(least, own[column])
        near[row] = not least > limit[row]
        if not near[row]:
            out = total[row, first : first + own.size]
            if fresh:
                for column in range(own.size):
                    out[column] = -weight * np.sqrt(own[column])
            else:
                for column in range(own.size):
                    out[column] -= weight * np.sqrt(own[column])


@_compiled
def _has_nan(scores):  # type: ignore[no-untyped-def]
    found = False
    for column in range(scores.size):
        found |= scores[column] != scores[column]
    return found


@_compiled
def _compare(scores, a, b, out):  # type: ignore[no-untyped-def]
    """How many scores are greater than, and at least, each of two values."""
    above_a, from_a, above_b, from_b = np.int32(0), np.int32(0), np.int32(0), np.int32(0)
    for column in range(scores.size):
        score = scores[column]
        # Counters as wide as the scores: twice as many fit in a vector of the processor.
        above_a = np.int32(above_a + (score > a))
        from_a = np.int32(from_a + (score >= a))
        above_b = np.int32(above_b + (score > b))
        from_b = np.int32(from_b + (score >= b))
    out[0], out[1], out[2], out[3] = above_a, from_a, above_b, from_b


@_compiled
def _place(scores, values, above, equal):  # type: ignore[no-untyped-def]
    """How many scores exceed exactly the first n of the sorted values, or equal the next."""
    count = values.size
    lowest = values[0]
    for column in range(scores.size):
        score = scores[column]
        if score < lowest:
            continue
        # Branchless: the comparisons cannot be predicted.
        place, size = 0, count
        while size > 1:
            half = size >> 1
            place += half * (values[place + half - 1] < score)
            size -= half
        place += values[place] < score
        above[place] += 1
        equal[place] += values[min(place, count - 1)] == score


@_compiled
def count_rows(
    scores, target_start, targets, known_start, known, better, ties, candidates, few, nan, lo, hi
):  # type: ignore[no-untyped-def]
    """Counts for the targets of rows lo to hi; marks rows with a NaN instead.

    Columns in ``known`` are not candidates, the targets among them; repeated ones count once.
    Up to ``few`` targets in a row are compared with all candidates, many at once; with more, each
    candidate is placed among the sorted targets.
    """
    width = scores.shape[1]
    mark = np.zeros(width, dtype=np.bool_)
    pair = np.empty(4, dtype=np.int64)
    for row in range(lo, hi):
        first, last = target_start[row], target_start[row + 1]
        count = last - first
        if count == 0:
            continue
        own = scores[row]
        if _has_nan(own):
            nan[row] = True
            continue
        removed = np.empty(known_start[row + 1] - known_start[row], dtype=scores.dtype)
        gone = 0
        for i in range(known_start[row], known_start[row + 1]):
            if not mark[known[i]]:
                mark[known[i]] = True
                removed[gone] = own[known[i]]
                gone += 1
        for i in range(known_start[row], known_start[row + 1]):
            mark[known[i]] = False
        removed = removed[:gone]
        values = np.empty(count, dtype=scores.dtype)
        for i in range(count):
            values[i] = own[targets[first + i]]
            candidates[first + i] = width - gone
        if count <= few:
            for i in range(0, count, 2):
                second = min(i + 1, count - 1)
                _compare(own, values[i], values[second], pair)
                for j, place in ((i, 0), (second, 2)):
                    better[first + j] = pair[place]
                    ties[first + j] = pair[place + 1] - pair[place]
                _compare(removed, values[i], values[second], pair)
                better[first + i] -= pair[0]
                ties[first + i] -= pair[1] - pair[0]
                if second != i:
                    better[first + second] -= pair[2]
                    ties[first + second] -= pair[3] - pair[2]
            continue
        order = np.argsort(values)
        values = values[order]
        above, equal = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
        _place(own, values, above, equal)
        less, fewer = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
        _place(removed, values, less, fewer)
        total, tied = 0, 0
        for i in range(count - 1, -1, -1):
            total += above[i + 1] - less[i + 1]
            better[first + order[i]] = total
        for i in range(count):
            if i == 0 or values[i] != values[i - 1]:
                tied = equal[i] - fewer[i]
            ties[first + order[i]] = tied
