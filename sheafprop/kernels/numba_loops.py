"""Loops over neighbours compiled by numba; imported where they first run, not with the package.

Every function fills the rows ``lo`` to ``hi`` of its output and releases the GIL, so that threads
share the work by rows and no sum depends on their number. Several entries are added at once, which
saves passes over the row of sums, and the features of later entries are fetched ahead: their
addresses are known, and waiting for memory is what a step consists of.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

# Loops with a step are written with while: the length of such a range costs a division.
_CACHE_LINE = 64


def _compiled(function: Callable) -> Any:
    # Fused multiply-adds only: sums keep their order, NaN and infinity their meaning.
    options: dict[str, Any] = {
        "nogil": True,
        "fastmath": {"contract", "nsz"},
        "error_model": "numpy",
    }
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        # No folder to keep the machine code in: compile for this process alone.
        return njit(**options)(function)


@intrinsic
def _prefetch_address(typing_context, array, offset):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # Read, keep in every cache, data.
        builder.call(function, [address, flag(0), flag(3), flag(1)])

    return types.void(array, types.intp), generate


@njit(inline="always")
def _prefetch(x, row, line):  # type: ignore[no-untyped-def]
    width = x.shape[1]
    place = np.int64(row) * width
    stop = place + width
    while place < stop:
        _prefetch_address(x, place)  # type: ignore[call-arg]
        place += line


@njit(inline="always")
def _begin(v, constant, sums):  # type: ignore[no-untyped-def]
    if constant.shape[0] == 0:
        sums[:] = 0
    else:
        period, base = constant.shape[1], 0
        # A narrower row of constants serves all sections.
        while base < sums.size:
            for j in range(period):
                sums[base + j] = constant[v, j]
            base += period


@_compiled
def _finish(v, sums, x, own, gain, factors, period, pair, out):  # type: ignore[no-untyped-def]
    """``out = (factors[0] + factors[1] own) x + factors[2] gain sums`` for one row."""
    width = sums.size
    r, q = (v if own.shape[0] > 1 else 0), (v if gain.shape[0] > 1 else 0)
    keeps = factors[0] != 0 or factors[1] != 0
    if own.shape[1] == 1 and gain.shape[1] == 1:
        a, b = factors[0] + factors[1] * own[r, 0], factors[2] * gain[q, 0]
        if keeps:
            for j in range(width):
                out[v, j] = a * x[v, j] + b * sums[j]
        else:
            for j in range(width):
                out[v, j] = b * sums[j]
        return
    own_step, gain_step = min(1, own.shape[1] - 1), min(1, gain.shape[1] - 1)
    base = 0
    while base < width:
        for k in range(period // pair):
            a = factors[0] + factors[1] * own[r, k * own_step]
            b = factors[2] * gain[q, k * gain_step]
            for j in range(base + k * pair, base + k * pair + pair):
                out[v, j] = b * sums[j] + (a * x[v, j] if keeps else x.dtype.type(0))

        base += period


@_compiled
def csr_rows(  # type: ignore[no-untyped-def]
    start, col, value, x, own, gain, constant, factors, ahead, out, lo, hi
):
    """Real entries: ``sums_v = sum_e value_e x[col_e]``."""
    width, last, line = x.shape[1], col.size - 1, _CACHE_LINE // x.itemsize
    sums = np.empty(width, x.dtype)
    for v in range(lo, hi):
        _begin(v, constant, sums)
        e, stop = start[v], start[v + 1]
        while e + 3 < stop:
            for k in range(4):
                _prefetch(x, col[min(e + k + ahead, last)], line)
            x0, x1, x2, x3 = x[col[e]], x[col[e + 1]], x[col[e + 2]], x[col[e + 3]]
            w0, w1, w2, w3 = value[e], value[e + 1], value[e + 2], value[e + 3]
            for j in range(width):
                sums[j] += (w0 * x0[j] + w1 * x1[j]) + (w2 * x2[j] + w3 * x3[j])
            e += 4
        while e < stop:
            _prefetch(x, col[min(e + ahead, last)], line)
            x0, w0 = x[col[e]], value[e]
            for j in range(width):
                sums[j] += w0 * x0[j]
            e += 1
        _finish(v, sums, x, own, gain, factors, width, 1, out)


@_compiled
def real_rows(  # type: ignore[no-untyped-def]
    start, col, label, weight, table, x, own, gain, constant, factors, ahead, out, lo, hi
):
    """Real diagonal maps: ``sums_v = sum_e weight_e table[label_e] x[col_e]``.

    Without weights (None) numba compiles a loop of its own.
    """
    width, last, d = x.shape[1], col.size - 1, table.shape[1]
    line = _CACHE_LINE // x.itemsize
    sums, one = np.empty(width, x.dtype), x.dtype.type(1)
    for v in range(lo, hi):
        _begin(v, constant, sums)
        e, stop = start[v], start[v + 1]
        while e + 1 < stop:
            _prefetch(x, col[min(e + ahead, last)], line)
            _prefetch(x, col[min(e + 1 + ahead, last)], line)
            c0, c1 = table[label[e]], table[label[e + 1]]
            w0 = one if weight is None else weight[e]
            w1 = one if weight is None else weight[e + 1]
            base = 0
            while base < width:
                x0, x1 = x[col[e], base : base + d], x[col[e + 1], base : base + d]
                y = sums[base : base + d]
                for j in range(d):
                    y[j] += (w0 * c0[j]) * x0[j] + (w1 * c1[j]) * x1[j]
                base += d
            e += 2
        if e < stop:
            _prefetch(x, col[min(e + ahead, last)], line)
            c0 = table[label[e]]
            w0 = one if weight is None else weight[e]
            base = 0
            while base < width:
                x0, y = x[col[e], base : base + d], sums[base : base + d]
                for j in range(d):
                    y[j] += (w0 * c0[j]) * x0[j]
                base += d
        _finish(v, sums, x, own, gain, factors, d, 1, out)


@_compiled
def complex_rows(  # type: ignore[no-untyped-def]
    start, col, label, table, x, own, gain, constant, factors, ahead, out, lo, hi
):
    """Complex diagonal maps on one section, without weights.

    ``x`` holds pairs, ``table[0]`` real and ``table[1]`` imaginary parts. The case that matters
    most has a loop of its own: what the next function adds to it costs a quarter more.
    """
    width, last, d = x.shape[1], col.size - 1, table.shape[2]
    line = _CACHE_LINE // x.itemsize
    sums, real, imaginary = np.empty(width, x.dtype), np.empty(d, x.dtype), np.empty(d, x.dtype)
    for v in range(lo, hi):
        _begin(v, constant, sums)
        real[:] = 0
        imaginary[:] = 0
        e, stop = start[v], start[v + 1]
        while e + 1 < stop:
            _prefetch(x, col[min(e + ahead, last)], line)
            _prefetch(x, col[min(e + 1 + ahead, last)], line)
            a0, b0, x0 = table[0, label[e]], table[1, label[e]], x[col[e]]
            a1, b1, x1 = table[0, label[e + 1]], table[1, label[e + 1]], x[col[e + 1]]
            for j in range(d):
                p0, q0 = x0[2 * j], x0[2 * j + 1]
                p1, q1 = x1[2 * j], x1[2 * j + 1]
                real[j] += a0[j] * p0 - b0[j] * q0 + a1[j] * p1 - b1[j] * q1
                imaginary[j] += a0[j] * q0 + b0[j] * p0 + a1[j] * q1 + b1[j] * p1
            e += 2
        if e < stop:
            a0, b0, x0 = table[0, label[e]], table[1, label[e]], x[col[e]]
            for j in range(d):
                p0, q0 = x0[2 * j], x0[2 * j + 1]
                real[j] += a0[j] * p0 - b0[j] * q0
                imaginary[j] += a0[j] * q0 + b0[j] * p0
        for j in range(d):
            sums[2 * j] += real[j]
            sums[2 * j + 1] += imaginary[j]
        _finish(v, sums, x, own, gain, factors, width, 2, out)


@_compiled
def complex_section_rows(  # type: ignore[no-untyped-def]
    start, col, label, weight, table, x, own, gain, constant, factors, ahead, out, lo, hi
):
    """The same with weights and for any number of sections."""
    half, last, d = x.shape[1] // 2, col.size - 1, table.shape[2]
    line = _CACHE_LINE // x.itemsize
    sums, one = np.empty(2 * half, x.dtype), x.dtype.type(1)
    real, imaginary = np.empty(half, x.dtype), np.empty(half, x.dtype)
    for v in range(lo, hi):
        _begin(v, constant, sums)
        real[:] = 0
        imaginary[:] = 0
        for e in range(start[v], start[v + 1]):
            _prefetch(x, col[min(e + ahead, last)], line)
            a0, b0 = table[0, label[e]], table[1, label[e]]
            w0 = one if weight is None else weight[e]
            base = 0
            while base < half:
                x0 = x[col[e], 2 * base : 2 * (base + d)]
                y, z = real[base : base + d], imaginary[base : base + d]
                for j in range(d):
                    p0, q0 = w0 * x0[2 * j], w0 * x0[2 * j + 1]
                    y[j] += a0[j] * p0 - b0[j] * q0
                    z[j] += a0[j] * q0 + b0[j] * p0
                base += d
        for j in range(half):
            sums[2 * j] += real[j]
            sums[2 * j + 1] += imaginary[j]
        _finish(v, sums, x, own, gain, factors, 2 * d, 2, out)


@_compiled
def symmetric_blocks(blocks, x, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out_v = blocks_v x_v`` for symmetric blocks and every section of ``x``, row after row."""
    d = blocks.shape[1]
    for v in range(lo, hi):
        out[v] = 0
        i = 0
        while i + 3 < d:
            b0, b1, b2, b3 = blocks[v, i], blocks[v, i + 1], blocks[v, i + 2], blocks[v, i + 3]
            for s in range(x.shape[1]):
                y, f = out[v, s], x[v, s]
                f0, f1, f2, f3 = f[i], f[i + 1], f[i + 2], f[i + 3]
                for j in range(d):
                    y[j] += (f0 * b0[j] + f1 * b1[j]) + (f2 * b2[j] + f3 * b3[j])
            i += 4
        while i < d:
            b0 = blocks[v, i]
            for s in range(x.shape[1]):
                y, f0 = out[v, s], x[v, s, i]
                for j in range(d):
                    y[j] += f0 * b0[j]
            i += 1


@_compiled
def real_label_sums(start, dst, src, weight, x, g, ahead, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out_p = sum of weight_e x[src_e] g[dst_e]`` over the entries of piece p and sections."""
    width, last, d = x.shape[1], src.size - 1, out.shape[1]
    line = _CACHE_LINE // x.itemsize
    for p in range(lo, hi):
        total = out[p]
        total[:] = 0
        for e in range(start[p], start[p + 1]):
            _prefetch(x, src[min(e + ahead, last)], line)
            _prefetch(g, dst[min(e + ahead, last)], line)
            w = x.dtype.type(1) if weight is None else weight[e]
            base = 0
            while base < width:
                x0, g0 = x[src[e], base : base + d], g[dst[e], base : base + d]
                for j in range(d):
                    total[j] += w * x0[j] * g0[j]

                base += d


@_compiled
def complex_label_sums(start, dst, src, weight, x, g, ahead, out, lo, hi):  # type: ignore[no-untyped-def]
    """The same for pairs, with the conjugate of ``x``; ``out`` holds pairs too."""
    width, last, d = x.shape[1], src.size - 1, out.shape[1]
    line = _CACHE_LINE // x.itemsize
    for p in range(lo, hi):
        total = out[p]
        total[:] = 0
        for e in range(start[p], start[p + 1]):
            _prefetch(x, src[min(e + ahead, last)], line)
            _prefetch(g, dst[min(e + ahead, last)], line)
            w = x.dtype.type(1) if weight is None else weight[e]
            base = 0
            while base < width:
                x0, g0 = x[src[e], base : base + d], g[dst[e], base : base + d]
                for j in range(d // 2):
                    p0, q0 = w * x0[2 * j], w * x0[2 * j + 1]
                    total[2 * j] += p0 * g0[2 * j] + q0 * g0[2 * j + 1]
                    total[2 * j + 1] += p0 * g0[2 * j + 1] - q0 * g0[2 * j]

                base += d


@_compiled
def counting_order(key, num_keys):  # type: ignore[no-untyped-def]
    """Starts of the runs of equal keys, and the stable order that sorts them."""
    start = np.zeros(num_keys + 1, np.int64)
    for k in key:
        start[k + 1] += 1
    for k in range(num_keys):
        start[k + 1] += start[k]
    order, place = np.empty(key.size, np.int64), start[:-1].copy()
    for i in range(key.size):
        order[place[key[i]]] = i
        place[key[i]] += 1
    return start, order


@_compiled
def merge_entries(start, col, value):  # type: ignore[no-untyped-def]
    """Adds up neighbouring entries of one place, in place; returns the new starts."""
    merged = np.zeros_like(start)
    free = 0
    for v in range(start.size - 1):
        begin = free
        for e in range(start[v], start[v + 1]):
            if free > begin and col[free - 1] == col[e]:
                value[free - 1] += value[e]
            else:
                col[free] = col[e]
                value[free] = value[e]
                free += 1
        merged[v + 1] = free
    return merged
