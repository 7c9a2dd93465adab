"""Compiled loops of the search for entities between; imported where they first run."""

import numpy as np

from sheafprop.kernels.numba_loops import compile_loops

_compiled = compile_loops()

# Columns of one output row that stay in the innermost cache.
_TILE = 2048


@_compiled
def raise_rows(out, rows, query, start, row, value, lo, hi):  # type: ignore[no-untyped-def]
    """``out[query] = max(out[query], value + rows[row])`` over the pairs of each query."""
    width = out.shape[1]
    for g in range(lo, hi):
        for base in range(0, width, _TILE):
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
