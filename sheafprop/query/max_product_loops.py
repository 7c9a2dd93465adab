"""Compiled loops of the search for entities between; imported where they first run."""

import numpy as np

from sheafprop.kernels.numba_loops import compile_loops

_compiled = compile_loops()

# Columns of rows that are treated one after the other while they are at hand, and those of some
# buffers.
_TILE, _LANES = 1024, 256
# Exponentials below are lost in a sum with one.
_LEAST = np.float32(-87)
_ONE, _HALF, _MINUS_INFINITY = np.float32(1), np.float32(0.5), np.float32(-np.inf)
# log2(e), and ln(2) as a number of few digits and its rest.
_LOG2E = np.float32(1.44269504)
_LN2, _LN2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
# The polynomial of Cephes' expf between -ln(2) / 2 and ln(2) / 2.
_C0, _C1 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3)
_C2, _C3 = np.float32(8.3334519073e-3), np.float32(4.1665795894e-2)
_C4, _C5 = np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@_compiled
def raise_rows(out, rows, query, start, row, value, lo, hi):  # type: ignore[no-untyped-def]
    """``out[query] = max(out[query], value + rows[row])`` over the pairs of each query."""
    width = out.shape[1]
    for base in range(0, width, _TILE):
        for g in range(lo, hi):
            y = out[query[g], base : base + _TILE]
            for e in range(start[g], start[g + 1]):
                t, x = value[e], rows[row[e], base : base + _TILE]
                for j in range(y.size):
                    z = x[j] + t
                    y[j] = z if z > y[j] else y[j]


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
    width, nan = y.size, 0
    for j in range(_LANES):
        most[j] = _MINUS_INFINITY
    for base in range(0, width, _LANES):
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
            nan += b[j] != b[j]
            most[j] = b[j] if b[j] > most[j] else most[j]
    top = _MINUS_INFINITY
    for j in range(_LANES):
        top = max(top, most[j])
    return top, nan > 0


@_compiled
def _sum_of_exponentials(y, top, part, power, total):  # type: ignore[no-untyped-def]
    """The sum of ``exp(y - top)``, for values up to the top; single precision."""
    factor = power.view(np.float32)
    for j in range(_LANES):
        total[j] = 0
    for base in range(0, y.size, _LANES):
        b = y[base : base + _LANES]
        for j in range(b.size):
            z = b[j] - top
            z = z if z > _LEAST else _LEAST
            n = np.floor(z * _LOG2E + _HALF)
            r = z - n * _LN2 - n * _LN2_REST
            p = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
            part[j] = p * r * r + r + _ONE
            # The bits of a power of two.
            power[j] = (np.int32(n) + np.int32(127)) << np.int32(23)
        for j in range(b.size):
            total[j] += part[j] * factor[j]
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
    most, part = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    power = np.empty(_LANES, np.int32)
    for i in range(lo, hi):
        y = rows[i]
        beside = near[i] if near.shape[0] else near[:0].reshape(-1)
        top, bad[i] = _scaled_row(y, beside, temperature, weight, outside, most)
        if top == np.inf:
            bad[i] = True
        if bad[i] or top == -np.inf:
            continue
        total = _sum_of_exponentials(y, top, part, power, most)
        shift = np.float32(scale[i] - np.log(total))
        for j in range(y.size):
            z = (y[j] - top) + shift
            y[j] = z if z < cap else cap
