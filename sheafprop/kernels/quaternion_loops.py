"""Loops over quaternions, four neighbouring columns each; imported where they first run."""

import numpy as np

from sheafprop.kernels.numba_loops import _ROWS, _begin, _finish, _prefetch, compile_loops

# Fused multiply-adds only: sums keep their order, NaN and infinity their meaning.
_compiled = compile_loops("contract", "nsz")


@_compiled
def quaternion_rows(  # type: ignore[no-untyped-def]
    start, col, label, weight, table, x, own, gain, constant, factors, ahead, out, lo, hi
):
    """``out_v = sum_e weight_e table[label_e] x[col_e]``, products of quaternions.

    ``table`` holds the four parts of the quaternions one after the other, ``[4, labels, d / 4]``.
    """
    quarter, last, d = x.shape[1] // 4, col.size - 1, table.shape[2]
    one, parts = x.dtype.type(1), np.empty((4, quarter), x.dtype)
    a, b, c, f = table[0], table[1], table[2], table[3]
    while lo < hi:
        end = min(lo + _ROWS, hi)
        _begin(constant, out, lo, end)
        for v in range(lo, end):
            for i in range(4):
                for j in range(quarter):
                    parts[i, j] = 0
            for e in range(start[v], start[v + 1]):
                _prefetch(x, col[min(e + ahead, last)])
                w0 = one if weight is None else weight[e]
                a0, b0, c0, f0 = a[label[e]], b[label[e]], c[label[e]], f[label[e]]
                base = 0
                while base < quarter:
                    x0 = x[col[e], 4 * base : 4 * (base + d)]
                    y0, y1 = parts[0, base : base + d], parts[1, base : base + d]
                    y2, y3 = parts[2, base : base + d], parts[3, base : base + d]
                    for j in range(d):
                        p, q = w0 * x0[4 * j], w0 * x0[4 * j + 1]
                        r, s = w0 * x0[4 * j + 2], w0 * x0[4 * j + 3]
                        y0[j] += (a0[j] * p - b0[j] * q) - (c0[j] * r + f0[j] * s)
                        y1[j] += (a0[j] * q + b0[j] * p) + (c0[j] * s - f0[j] * r)
                        y2[j] += (a0[j] * r - b0[j] * s) + (c0[j] * p + f0[j] * q)
                        y3[j] += (a0[j] * s + b0[j] * r) + (f0[j] * p - c0[j] * q)
                    base += d
            for j in range(quarter):
                for i in range(4):
                    out[v, 4 * j + i] += parts[i, j]
        _finish(x, own, gain, factors, 4 * d, 1, out, lo, end)
        lo = end


@_compiled
def quaternion_label_sums(start, dst, src, weight, x, g, ahead, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out_p = sum of weight_e g[dst_e]`` times the conjugate of ``x[src_e]``, over the entries of
    piece p and sections."""
    width, last, d = x.shape[1], src.size - 1, out.shape[1]
    for k in range(lo, hi):
        total = out[k]
        for j in range(d):
            total[j] = 0
        for e in range(start[k], start[k + 1]):
            _prefetch(x, src[min(e + ahead, last)])
            _prefetch(g, dst[min(e + ahead, last)])
            w = x.dtype.type(1) if weight is None else weight[e]
            base = 0
            while base < width:
                x0, g0 = x[src[e], base : base + d], g[dst[e], base : base + d]
                for j in range(d // 4):
                    p, q = w * x0[4 * j], w * x0[4 * j + 1]
                    r, s = w * x0[4 * j + 2], w * x0[4 * j + 3]
                    a, b, c, f = g0[4 * j], g0[4 * j + 1], g0[4 * j + 2], g0[4 * j + 3]
                    total[4 * j] += (a * p + b * q) + (c * r + f * s)
                    total[4 * j + 1] += (b * p - a * q) + (f * r - c * s)
                    total[4 * j + 2] += (c * p - a * r) + (b * s - f * q)
                    total[4 * j + 3] += (f * p - a * s) + (c * q - b * r)
                base += d
