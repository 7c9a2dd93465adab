"""Loops over sets, energies and scores, compiled by numba; imported where they first run."""

import numpy as np

from sheafprop.kernels.numba_loops import compile_loops

ANCHOR, VIA, AND, OR, NOT = range(5)

# Sums keep their order.
_compiled = compile_loops()


@_compiled
def _follow(heads, starts, tails, lo, hi, given, count, is_given, is_found, found):  # type: ignore[no-untyped-def]
    """Collects what one relation leads to; returns how many. Marks are left clean."""
    total = 0
    size = hi - lo
    steps = 1
    while (1 << steps) < size:
        steps += 1
    if count * steps < size + 2 * count:
        for i in range(count):
            v = given[i]
            first, last = lo, hi
            while first < last:
                middle = (first + last) >> 1
                if heads[middle] < v:
                    first = middle + 1
                else:
                    last = middle
            if first < hi and heads[first] == v:
                for j in range(starts[first], starts[first + 1]):
                    t = tails[j]
                    if not is_found[t]:
                        is_found[t] = True
                        found[total] = t
                        total += 1
    else:
        for i in range(count):
            is_given[given[i]] = True
        for i in range(lo, hi):
            if is_given[heads[i]]:
                for j in range(starts[i], starts[i + 1]):
                    t = tails[j]
                    if not is_found[t]:
                        is_found[t] = True
                        found[total] = t
                        total += 1
        for i in range(count):
            is_given[given[i]] = False
    for i in range(total):
        is_found[found[i]] = False
    return total


@_compiled
def _combine(operator, a, num_a, b, num_b, mark):  # type: ignore[no-untyped-def]
    """Intersection or union of two sets, into the first; returns its size."""
    total = 0
    if operator == AND:
        for i in range(num_b):
            mark[b[i]] = True
        for i in range(num_a):
            if mark[a[i]]:
                a[total] = a[i]
                total += 1
        for i in range(num_b):
            mark[b[i]] = False
        return total
    total = num_a
    for i in range(num_a):
        mark[a[i]] = True
    for i in range(num_b):
        if not mark[b[i]]:
            mark[b[i]] = True
            a[total] = b[i]
            total += 1
    for i in range(total):
        mark[a[i]] = False
    return total


@_compiled
def _write_sorted(values, count, mark, out, used):  # type: ignore[no-untyped-def]
    """Appends a set in ascending order."""
    if count * 16 < mark.size:
        out[used : used + count] = np.sort(values[:count])
        return
    for i in range(count):
        mark[values[i]] = True
    for v in range(mark.size):
        if mark[v]:
            mark[v] = False
            out[used] = v
            used += 1


@_compiled
def answer_rows(program, depth, slots, index, domain, size, lo, hi):  # type: ignore[no-untyped-def]
    """Answers of the queries in rows lo to hi: sizes, and all sets one after the other."""
    relations, heads, starts, tails = index
    stack = np.empty((depth + 1, size), dtype=np.int32)
    count = np.zeros(depth + 1, dtype=np.int64)
    mark, other = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
    sizes = np.zeros(hi - lo, dtype=np.int64)
    out = np.empty(size + 1024, dtype=np.int32)
    used = 0
    for row in range(lo, hi):
        top, slot = -1, 0
        for operator in program:
            if operator == ANCHOR:
                top += 1
                stack[top, 0] = slots[row, slot]
                count[top] = 1
                slot += 1
            elif operator == VIA:
                r = slots[row, slot]
                slot += 1
                # The result goes above the operand, then takes its place.
                number = _follow(
                    heads, starts, tails, relations[r], relations[r + 1],
                    stack[top], count[top], mark, other, stack[top + 1],
                )  # fmt: skip
                for i in range(number):
                    stack[top, i] = stack[top + 1, i]
                count[top] = number
            elif operator == NOT:
                for i in range(count[top]):
                    mark[stack[top, i]] = True
                total = 0
                for v in domain:
                    if not mark[v]:
                        stack[top + 1, total] = v
                        total += 1
                for i in range(count[top]):
                    mark[stack[top, i]] = False
                for i in range(total):
                    stack[top, i] = stack[top + 1, i]
                count[top] = total
            else:
                top -= 1
                count[top] = _combine(
                    operator, stack[top], count[top], stack[top + 1], count[top + 1], mark
                )
        number = count[0]
        if used + number > out.size:
            grown = np.empty(2 * out.size + number, dtype=np.int32)
            grown[:used] = out[:used]
            out = grown
        _write_sorted(stack[0], number, mark, out, used)
        sizes[row - lo] = number
        used += number
    return sizes, out[:used].copy()


@_compiled
def differences(start, values, other_start, other_values):  # type: ignore[no-untyped-def]
    """For every row the ascending values that the other row lacks."""
    rows = start.size - 1
    sizes = np.zeros(rows, dtype=np.int64)
    out = np.empty_like(values)
    used = 0
    for row in range(rows):
        j, end = other_start[row], other_start[row + 1]
        first = used
        for i in range(start[row], start[row + 1]):
            v = values[i]
            while j < end and other_values[j] < v:
                j += 1
            if j == end or other_values[j] != v:
                out[used] = v
                used += 1
        sizes[row] = used - first
    return sizes, out[:used].copy()


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

    Columns in ``known`` are no candidates, the targets among them; repeated ones count once.
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
