"""Loops over energies and scores, and over entities between, compiled by numba.

Imported where they first run.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from sheafprop.kernels.numba_loops import compile_loops

# Sums keep their order.
_compiled, _fused = compile_loops(), compile_loops("contract")


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


# Columns of rows that are treated one after the other while they are at hand, and those of some
# buffers.
TILE, _LANES = 1024, 256
_HALF, _MINUS_INFINITY = np.float32(0.5), np.float32(-np.inf)


@_compiled
def raise_rows(out, rows, query, start, row, value, lo, hi):  # type: ignore[no-untyped-def]
    """``out[query] = max(out[query], value + rows[row])`` over the pairs of each query.

    From one tile of columns up to another: there may be a single query.
    """
    for tile in range(lo, hi):
        columns = slice(tile * TILE, tile * TILE + TILE)
        for g in range(query.size):
            y, e, stop = out[query[g], columns], start[g], start[g + 1]
            # Four rows at a time: the maximum is read and written once for them.
            while e + 3 < stop:
                t0, t1, t2, t3 = value[e], value[e + 1], value[e + 2], value[e + 3]
                x0, x1 = rows[row[e], columns], rows[row[e + 1], columns]
                x2, x3 = rows[row[e + 2], columns], rows[row[e + 3], columns]
                for j in range(y.size):
                    z0, z1, z2, z3 = x0[j] + t0, x1[j] + t1, x2[j] + t2, x3[j] + t3
                    z0, z2 = z0 if z0 > z1 else z1, z2 if z2 > z3 else z3
                    z0 = z0 if z0 > z2 else z2
                    y[j] = z0 if z0 > y[j] else y[j]
                e += 4
            while e < stop:
                t, x = value[e], rows[row[e], columns]
                for j in range(y.size):
                    z = x[j] + t
                    y[j] = z if z > y[j] else y[j]
                e += 1


@_compiled
def _sift(value, entity, size, place):  # type: ignore[no-untyped-def]
    """Moves an item down to its place; the least value, of those the last entity, is on top."""
    v, u = value[place], entity[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            value[other] < value[child]
            or (value[other] == value[child] and entity[other] > entity[child])
        ):
            child = other
        if value[child] > v or (value[child] == v and entity[child] < u):
            break
        value[place], entity[place] = value[child], entity[child]
        place = child
    value[place], entity[place] = v, u


@_compiled
def best_columns(values, k, entity, best, following, lo, hi):  # type: ignore[no-untyped-def]
    """The k largest entries of every row and the one that follows; of equal ones the first."""
    heap_value, heap_entity = np.empty(k + 1, values.dtype), np.empty(k + 1, np.int64)
    for i in range(lo, hi):
        x, size = values[i], 0
        least = x.dtype.type(-np.inf)
        for j in range(x.size):
            if x[j] > least:
                if size <= k:
                    heap_value[size], heap_entity[size] = x[j], j
                    size += 1
                    if size == k + 1:
                        for p in range(k // 2, -1, -1):
                            _sift(heap_value, heap_entity, size, p)
                        least = heap_value[0]
                else:
                    heap_value[0], heap_entity[0] = x[j], j
                    _sift(heap_value, heap_entity, size, 0)
                    least = heap_value[0]
        following[i] = -np.inf
        if size == k + 1:
            following[i] = heap_value[0]
            size = k
            heap_value[0], heap_entity[0] = heap_value[k], heap_entity[k]
        for p in range(k):
            best[i, p] = heap_value[p] if p < size else -np.inf
            entity[i, p] = heap_entity[p] if p < size else 0


@_compiled
def _scaled_row(y, near, temperature, weight, outside, most):  # type: ignore[no-untyped-def]
    """Replaces scores by what shares are made of; returns its maximum, and whether one is NaN."""
    # A counter as wide as the scores: twice as many fit in a vector of the processor.
    nan = np.int32(0)
    for j in range(_LANES):
        most[j] = _MINUS_INFINITY
    for base in range(0, y.size, _LANES):
        b = y[base : base + _LANES]
        for j in range(b.size):
            b[j] *= temperature
        if near.size:
            c = near[base : base + _LANES]
            for j in range(b.size):
                b[j] += c[j] * weight
        if outside.size:
            left = outside[base : base + _LANES]
            for j in range(b.size):
                b[j] = _MINUS_INFINITY if left[j] else b[j]
        for j in range(b.size):
            nan = np.int32(nan + (b[j] != b[j]))
            most[j] = b[j] if b[j] > most[j] else most[j]
    top = _MINUS_INFINITY
    for j in range(_LANES):
        top = max(top, most[j])
    return top, nan > 0


def _multiply_bits(context, power, exponent):  # type: ignore[no-untyped-def]
    """``power * 2**exponent``, by the bits of a number between 0.5 and 2; an intrinsic."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        bits = ir.IntType(32)
        shift = builder.shl(arguments[1], bits(23))
        total = builder.add(builder.bitcast(arguments[0], bits), shift)
        return builder.bitcast(total, ir.FloatType())

    return types.float32(types.float32, types.int32), generate


_times_power: Any = intrinsic(_multiply_bits)
# log2(e); and the least exponent of a number, whose power of two is lost in a sum with one.
_LOG2E, _LEAST = np.float32(1.44269504), np.float32(-126)
# The series of 2**r, the powers of ln(2) by the factorials: between -1/2 and 1/2 within 2e-7.
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = (
    np.float32(math.log(2) ** i / math.factorial(i)) for i in range(7)
)


@_fused
def _sum_of_exponentials(y, top, total):  # type: ignore[no-untyped-def]
    """The sum of ``exp(y - top)``, for values up to the top; single precision."""
    for j in range(_LANES):
        total[j] = 0
    for base in range(0, y.size, _LANES):
        b = y[base : base + _LANES]
        for j in range(b.size):
            z = (b[j] - top) * _LOG2E
            z = z if z > _LEAST else _LEAST
            n = np.floor(z + _HALF)
            r = z - n
            p = (((((_C6 * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _C0
            total[j] += _times_power(p, np.int32(n))
    out = 0.0
    for j in range(_LANES):
        out += total[j]
    return out


@_compiled
def share_rows(rows, near, temperature, weight, outside, scale, cap, bad, lo, hi):  # type: ignore[no-untyped-def]
    """Replaces scores by ``min(cap, scale + log_softmax(temperature * scores + weight * near))``.

    ``near`` and ``outside`` may be empty. Rows of minus infinity stay so; ``bad`` are those with a
    score that is NaN or infinite.
    """
    lanes = np.empty(_LANES, np.float32)
    for i in range(lo, hi):
        y = rows[i]
        beside = near[i] if near.shape[0] else near[:0].reshape(-1)
        top, bad[i] = _scaled_row(y, beside, temperature, weight, outside, lanes)
        if top == np.inf:
            bad[i] = True
        if bad[i] or top == -np.inf:
            continue
        shift = np.float32(scale[i] - np.log(_sum_of_exponentials(y, top, lanes)))
        for j in range(y.size):
            z = (y[j] - top) + shift
            y[j] = z if z < cap else cap
