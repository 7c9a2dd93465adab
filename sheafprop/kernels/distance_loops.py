"""Distances of rows under diagonal maps, compiled by numba; imported where they first run."""

import numpy as np

from sheafprop.kernels.numba_loops import compile_loops

# Sums may take any order, so that they run in vector registers.
_compiled = compile_loops("reassoc", "nsz", "contract")


@_compiled
def lengths(a, b, in_a, in_b, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out_e = |a[in_a_e] - b[in_b_e]|``"""
    for e in range(lo, hi):
        x, y = a[in_a[e]], b[in_b[e]]
        total = a.dtype.type(0)
        for j in range(x.size):
            difference = x[j] - y[j]
            total += difference * difference
        out[e] = np.sqrt(total)


@_compiled
def weighted_sums(start, order, weight, a, b, in_b, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out_v = sum_e weight_e (a_v - b[in_b_e])`` over the entries ``order`` of each row."""
    for v in range(lo, hi):
        x, y = a[v], out[v]
        for j in range(y.size):
            y[j] = 0
        k, stop = start[v], start[v + 1]
        while k + 1 < stop:
            e, f = order[k], order[k + 1]
            w0, w1, b0, b1 = weight[e], weight[f], b[in_b[e]], b[in_b[f]]
            for j in range(y.size):
                y[j] += w0 * (x[j] - b0[j]) + w1 * (x[j] - b1[j])
            k += 2
        if k < stop:
            e = order[k]
            w0, b0 = weight[e], b[in_b[e]]
            for j in range(y.size):
                y[j] += w0 * (x[j] - b0[j])


@_compiled
def map_rows(table, group, x, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out_i = x_i table[group_i]``; every row of ``group`` stands for as many rows of ``x``."""
    size = x.shape[0] // group.size
    for i in range(lo, hi):
        matrix, y = table[group[i // size]], out[i]
        for k in range(y.size):
            y[k] = 0
        for j in range(matrix.shape[0]):
            factor, row = x[i, j], matrix[j]
            for k in range(y.size):
                y[k] += factor * row[k]


@_compiled
def sums_of_products(size, start, order, a, b, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out_v = sum_e a_e b_e^T`` over the entries ``order`` of each row, ``size`` pairs each."""
    for v in range(lo, hi):
        out[v] = 0
        for e in order[start[v] : start[v + 1]]:
            for i in range(e * size, e * size + size):
                y = b[i]
                for j in range(a.shape[1]):
                    factor, row = a[i, j], out[v, j]
                    for k in range(y.size):
                        row[k] += factor * y[k]


@_compiled
def near_squares(rows, target, out, lo, hi):  # type: ignore[no-untyped-def]
    """Squared distances ``[N]`` of rows ``[N, d]`` to one target ``[d]``."""
    for n in range(lo, hi):
        x = rows[n]
        total = rows.dtype.type(0)
        for j in range(x.size):
            difference = x[j] - target[j]
            total += difference * difference
        out[n] = total


@_compiled
def scores_of_squares(squares, root, lo, hi):  # type: ignore[no-untyped-def]
    """Replaces squared distances, or where rounding left less than zero zero, by scores."""
    for i in range(lo, hi):
        y = squares[i]
        for j in range(y.size):
            y[j] = y.dtype.type(0) if y[j] < 0 else y[j]
        if root:
            for j in range(y.size):
                y[j] = -np.sqrt(y[j])
        else:
            for j in range(y.size):
                y[j] = -y[j]


@_compiled
def scaled_squares(rows, scale, target, out, lo, hi):  # type: ignore[no-untyped-def]
    """Squared distances ``[B, N]`` of rows ``[N, d]``, scaled by ``[B, d]``, to targets."""
    for n in range(lo, hi):
        x = rows[n]
        for b in range(scale.shape[0]):
            total = rows.dtype.type(0)
            for j in range(x.size):
                difference = scale[b, j] * x[j] - target[b, j]
                total += difference * difference
            out[b, n] = total


@_compiled
def compare_rows(scores, true, better, equal, lo, hi):  # type: ignore[no-untyped-def]
    """How many scores of each row are greater than, and equal to, one value."""
    for row in range(lo, hi):
        own, value = scores[row], true[row]
        above, same = 0, 0
        for column in range(own.size):
            above += own[column] > value
            same += own[column] == value
        better[row], equal[row] = above, same
