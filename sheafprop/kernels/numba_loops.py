"""Loops compiled by numba; imported where they first run, not with the package.

Long because numba is imported, and its absence reported, in one place, and because the loops share
their beginning, end and prefetching.

Loops over neighbours fill the rows ``lo`` to ``hi`` of their output and release the GIL, so that
threads share the work by rows and no sum depends on their number. The features of later entries are
fetched ahead: their addresses are known, and waiting for memory is what a step consists of.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from sheafprop.kernels.block_sums import block_sum, complex_block_sum, scaled_block_sum

# Loops with a step are written with while: the length of such a range costs a division.
_CACHE_LINE = 64
# Rows begun and finished together: a call for each row would cost more than the row.
_ROWS = 32


def compile_loops(*fastmath: str) -> Callable[[Callable], Any]:
    """A decorator that compiles a loop by numba, which then releases the GIL.

    Args:
        *fastmath: What LLVM may do to floating-point operations; without any, nothing.
    """
    options: dict[str, Any] = {"nogil": True}
    if fastmath:
        options |= {"fastmath": set(fastmath), "error_model": "numpy"}

    def compile_loop(function: Callable) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:
            # No folder to keep the machine code in: compile for this process alone.
            return njit(**options)(function)

    return compile_loop


# Fused multiply-adds only: sums keep their order, NaN and infinity their meaning.
_compiled = compile_loops("contract", "nsz")


def _fetching(typing_context, array, row):  # type: ignore[no-untyped-def]
    """Asks for every cache line of a row; an intrinsic, so that no array is counted twice."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = signature.args[0]
        rows = context.make_array(kind)(context, builder, arguments[0])
        index = context.cast(builder, arguments[1], signature.args[1], types.intp)
        width = cgutils.unpack_tuple(builder, rows.shape)[1]
        first = builder.gep(rows.data, [builder.mul(index, width)])
        first = builder.bitcast(first, cgutils.voidptr_t)
        size = context.get_constant(
            types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype))
        )
        line = context.get_constant(types.intp, _CACHE_LINE)
        flag = ir.IntType(32)
        call = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, call, "llvm.prefetch.p0")
        none, stop = context.get_constant(types.intp, 0), builder.mul(width, size)
        with cgutils.for_range_slice(builder, none, stop, line, inc=True) as (offset, _):
            # Read, keep in every cache, data.
            builder.call(function, [builder.gep(first, [offset]), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, row), generate


_prefetch: Any = intrinsic(_fetching)
# By the number of bytes: every width is a sum of these.
_add_256, _add_128, _add_64, _add_32 = map(block_sum, (256, 128, 64, 32))
_add_16, _add_8, _add_4 = map(block_sum, (16, 8, 4))
_scaled_256, _scaled_128, _scaled_64, _scaled_32 = map(scaled_block_sum, (256, 128, 64, 32))
_scaled_16, _scaled_8, _scaled_4 = map(scaled_block_sum, (16, 8, 4))
_complex_256, _complex_128, _complex_64 = map(complex_block_sum, (256, 128, 64))
_complex_32, _complex_16, _complex_8 = map(complex_block_sum, (32, 16, 8))


@_compiled
def _begin(constant, out, lo, hi):  # type: ignore[no-untyped-def]
    """Writes the constants, or zeros, into the rows."""
    width, period = out.shape[1], constant.shape[1]
    for v in range(lo, hi):
        if constant.shape[0] == 0:
            for j in range(width):
                out[v, j] = 0
        elif period == width:
            for j in range(width):
                out[v, j] = constant[v, j]
        else:
            # A narrower row of constants serves all sections.
            for j in range(width):
                out[v, j] = constant[v, j % period]


@_compiled
def _finish(x, own, gain, factors, period, pair, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out = (factors[0] + factors[1] own) x + factors[2] gain out`` in the rows."""
    width, f0, f1, f2 = out.shape[1], factors[0], factors[1], factors[2]
    wide = own.shape[1] > 1 or gain.shape[1] > 1
    own_step, gain_step = min(1, own.shape[1] - 1), min(1, gain.shape[1] - 1)
    for v in range(lo, hi):
        r, q = (v if own.shape[0] > 1 else 0), (v if gain.shape[0] > 1 else 0)
        if wide:
            base = 0
            while base < width:
                for k in range(period // pair):
                    a = f0 + f1 * own[r, k * own_step]
                    b = f2 * gain[q, k * gain_step]
                    for j in range(base + k * pair, base + k * pair + pair):
                        out[v, j] = a * x[v, j] + b * out[v, j]
                base += period
        else:
            a, b = f0 + f1 * own[r, 0], f2 * gain[q, 0]
            if f0 != 0 or f1 != 0:
                for j in range(width):
                    out[v, j] = a * x[v, j] + b * out[v, j]
            elif b != 1:
                for j in range(width):
                    out[v, j] = b * out[v, j]


@_compiled
def csr_rows(  # type: ignore[no-untyped-def]
    start, col, value, x, own, gain, constant, factors, ahead, out, lo, hi
):
    """Real entries: ``out_v = sum_e value_e x[col_e]``; values may be small integers.

    Without values (None) numba compiles a loop of its own, for ones.
    """
    width, size = x.shape[1], x.itemsize
    while lo < hi:
        end = min(lo + _ROWS, hi)
        _begin(constant, out, lo, end)
        for v in range(lo, end):
            e, stop, j = start[v], start[v + 1], 0
            while (width - j) * size >= 256:
                _add_256(e, stop, ahead, j, col, x, out, v, value)
                j += 256 // size
            left = (width - j) * size
            if left & 128:
                _add_128(e, stop, ahead, j, col, x, out, v, value)
                j += 128 // size
            if left & 64:
                _add_64(e, stop, ahead, j, col, x, out, v, value)
                j += 64 // size
            if left & 32:
                _add_32(e, stop, ahead, j, col, x, out, v, value)
                j += 32 // size
            if left & 16:
                _add_16(e, stop, ahead, j, col, x, out, v, value)
                j += 16 // size
            if left & 8:
                _add_8(e, stop, ahead, j, col, x, out, v, value)
                j += 8 // size
            if left & 4:
                _add_4(e, stop, ahead, j, col, x, out, v, value)
        _finish(x, own, gain, factors, width, 1, out, lo, end)
        lo = end


@_compiled
def tile_sums(start, col, value, tile, row, column, out):  # type: ignore[no-untyped-def]
    """The same sums for a piece ``tile [n, rows, columns]`` of some matrices, written to its place
    in ``out``."""
    height, width = tile.shape[1], tile.shape[2]
    x = tile.reshape(tile.shape[0], height * width)
    y = np.empty(height * width, tile.dtype)
    for v in range(out.shape[0]):
        for j in range(y.size):
            y[j] = 0
        e, stop = start[v], start[v + 1]
        while e + 3 < stop:
            x0, x1, x2, x3 = x[col[e]], x[col[e + 1]], x[col[e + 2]], x[col[e + 3]]
            w0, w1, w2, w3 = value[e], value[e + 1], value[e + 2], value[e + 3]
            for j in range(y.size):
                y[j] += (w0 * x0[j] + w1 * x1[j]) + (w2 * x2[j] + w3 * x3[j])
            e += 4
        while e < stop:
            x0, w0 = x[col[e]], value[e]
            for j in range(y.size):
                y[j] += w0 * x0[j]
            e += 1
        for i in range(height):
            z, x0 = out[v, row + i, column : column + width], y[i * width : (i + 1) * width]
            for j in range(z.size):
                z[j] = x0[j]


@_compiled
def real_rows(  # type: ignore[no-untyped-def]
    start, col, label, weight, table, x, own, gain, constant, factors, ahead, out, lo, hi
):
    """Real diagonal maps: ``out_v = sum_e weight_e table[label_e] x[col_e]``.

    Without weights (None) numba compiles a loop of its own.
    """
    width, size, d = x.shape[1], x.itemsize, table.shape[1]
    while lo < hi:
        end = min(lo + _ROWS, hi)
        _begin(constant, out, lo, end)
        for v in range(lo, end):
            e, stop, j, i = start[v], start[v + 1], 0, 0
            while j < width:
                left = (d - i) * size
                if left >= 256:
                    _scaled_256(e, stop, ahead, j, col, x, out, v, weight, label, i, table)
                    taken = 256
                elif left >= 128:
                    _scaled_128(e, stop, ahead, j, col, x, out, v, weight, label, i, table)
                    taken = 128
                elif left >= 64:
                    _scaled_64(e, stop, ahead, j, col, x, out, v, weight, label, i, table)
                    taken = 64
                elif left >= 32:
                    _scaled_32(e, stop, ahead, j, col, x, out, v, weight, label, i, table)
                    taken = 32
                elif left >= 16:
                    _scaled_16(e, stop, ahead, j, col, x, out, v, weight, label, i, table)
                    taken = 16
                elif left >= 8:
                    _scaled_8(e, stop, ahead, j, col, x, out, v, weight, label, i, table)
                    taken = 8
                else:
                    _scaled_4(e, stop, ahead, j, col, x, out, v, weight, label, i, table)
                    taken = 4
                j += taken // size
                # The table serves every section.
                i = (i + taken // size) % d
        _finish(x, own, gain, factors, d, 1, out, lo, end)
        lo = end


@_compiled
def complex_rows(  # type: ignore[no-untyped-def]
    start, col, label, weight, table, x, own, gain, constant, factors, ahead, out, lo, hi
):
    """Complex diagonal maps: ``x`` holds pairs, ``table[0]`` real, ``table[1]`` imaginary parts."""
    width, size, d = x.shape[1], x.itemsize, table.shape[2]
    real, imaginary = table[0], table[1]
    while lo < hi:
        end = min(lo + _ROWS, hi)
        _begin(constant, out, lo, end)
        for v in range(lo, end):
            e, stop, j, i = start[v], start[v + 1], 0, 0
            while j < width:
                left = 2 * (d - i) * size
                if left >= 256:
                    _complex_256(
                        e, stop, ahead, j, col, x, out, v, weight, label, i, real, imaginary
                    )
                    taken = 256
                elif left >= 128:
                    _complex_128(
                        e, stop, ahead, j, col, x, out, v, weight, label, i, real, imaginary
                    )
                    taken = 128
                elif left >= 64:
                    _complex_64(
                        e, stop, ahead, j, col, x, out, v, weight, label, i, real, imaginary
                    )
                    taken = 64
                elif left >= 32:
                    _complex_32(
                        e, stop, ahead, j, col, x, out, v, weight, label, i, real, imaginary
                    )
                    taken = 32
                elif left >= 16:
                    _complex_16(
                        e, stop, ahead, j, col, x, out, v, weight, label, i, real, imaginary
                    )
                    taken = 16
                else:
                    _complex_8(e, stop, ahead, j, col, x, out, v, weight, label, i, real, imaginary)
                    taken = 8
                j += taken // size
                i = (i + taken // (2 * size)) % d
        _finish(x, own, gain, factors, 2 * d, 2, out, lo, end)
        lo = end


@_compiled
def symmetric_blocks(blocks, kind, x, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out_v = blocks_kind[v] x_v`` for symmetric blocks and every section of ``x``."""
    d = blocks.shape[1]
    for v in range(lo, hi):
        block = blocks[kind[v]]
        for s in range(x.shape[1]):
            for j in range(d):
                out[v, s, j] = 0
        i = 0
        while i + 3 < d:
            b0, b1, b2, b3 = block[i], block[i + 1], block[i + 2], block[i + 3]
            for s in range(x.shape[1]):
                y, f = out[v, s], x[v, s]
                f0, f1, f2, f3 = f[i], f[i + 1], f[i + 2], f[i + 3]
                for j in range(d):
                    y[j] += (f0 * b0[j] + f1 * b1[j]) + (f2 * b2[j] + f3 * b3[j])
            i += 4
        while i < d:
            b0 = block[i]
            for s in range(x.shape[1]):
                y, f0 = out[v, s], x[v, s, i]
                for j in range(d):
                    y[j] += f0 * b0[j]
            i += 1


@_compiled
def _add_multiple(f, x, y):  # type: ignore[no-untyped-def]
    for j in range(y.size):
        y[j] += f * x[j]


@_compiled
def _set_ratio(x, f, y):  # type: ignore[no-untyped-def]
    for j in range(y.size):
        y[j] = x[j] / f


@_compiled
def _add_eight(f, x, out):  # type: ignore[no-untyped-def]
    """Adds to the rows what ``f [8, n]`` takes of the eight rows ``x``."""
    x0, x1, x2, x3, x4, x5, x6, x7 = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
    for i in range(out.shape[0]):
        y, f0, f1, f2, f3 = out[i], f[0, i], f[1, i], f[2, i], f[3, i]
        f4, f5, f6, f7 = f[4, i], f[5, i], f[6, i], f[7, i]
        for j in range(y.size):
            total = f0 * x0[j] + f1 * x1[j]
            total = (total + f2 * x2[j]) + f3 * x3[j]
            total = (total + f4 * x4[j]) + f5 * x5[j]
            total = (total + f6 * x6[j]) + f7 * x7[j]
            y[j] += total


@_compiled
def _root_of_inverse(a, x, f):  # type: ignore[no-untyped-def]
    """Replaces symmetric ``a`` by the lower triangular G with ``G a G' = 1``.

    Gaussian elimination, eight rows at a time: the columns behind the pivot hold what is left of
    ``a``, those before it the inverse of the factor. Reads the upper triangle alone; returns False
    at a pivot that is not positive. Loops run over slices: numba compiles a first index other than
    zero to slower code.
    """
    d, one = a.shape[0], a.dtype.type(1)
    for k in range(0, d, 8):
        end = min(k + 8, d)
        for r in range(k, end):
            y = a[r]
            for q in range(k, r):
                pivot = a[q, q]
                factor = -a[q, r] / pivot
                y[q], a[q, q] = 0, one
                _add_multiple(factor, a[q], y)
                a[q, q] = pivot
            if not y[r] > 0:
                return False
        if end == d:
            break
        for r in range(k, end):
            y, z = a[r], x[r - k]
            # What is left of a is symmetric: its columns are taken from its rows.
            _set_ratio(y[end:], -y[r], f[r - k, end:])
            for j in range(d):
                z[j] = y[j]
            z[r] = 1
            z[r + 1 : end] = 0
        for i in range(end, d):
            y = a[i, k:end]
            for j in range(y.size):
                y[j] = 0
        _add_eight(f[:, end:], x, a[end:])
    for i in range(d):
        y = a[i]
        scale = one / np.sqrt(y[i])
        y[i] = 1
        z = y[: i + 1]
        for j in range(z.size):
            z[j] *= scale
        z = y[i + 1 :]
        for j in range(z.size):
            z[j] = 0
    return True


@_compiled
def roots_of_inverses(blocks, definite):  # type: ignore[no-untyped-def]
    """Replaces the blocks that are definite by lower triangular factors ``G`` of their inverses
    ``G' G``."""
    d = blocks.shape[1]
    x, f = np.empty((8, d), blocks.dtype), np.empty((8, d), blocks.dtype)
    for v in range(blocks.shape[0]):
        definite[v] = _root_of_inverse(blocks[v], x, f)


@_compiled
def symmetric_norms(blocks, out):  # type: ignore[no-untyped-def]
    """Frobenius norms of symmetric blocks, from their upper triangles."""
    d = blocks.shape[1]
    total = np.empty(d, blocks.dtype)
    for v in range(blocks.shape[0]):
        for j in range(d):
            total[j] = 0
        diagonal = 0.0
        for i in range(d):
            y, z = blocks[v, i, i:], total[i:]
            for j in range(y.size):
                z[j] += y[j] * y[j]
            diagonal += y[0] * y[0]
        out[v] = np.sqrt(2 * total.sum() - diagonal)


@_compiled
def real_label_sums(start, dst, src, weight, x, g, ahead, out, lo, hi):  # type: ignore[no-untyped-def]
    """``out_p = sum of weight_e x[src_e] g[dst_e]`` over the entries of piece p and sections."""
    width, last, d = x.shape[1], src.size - 1, out.shape[1]
    for p in range(lo, hi):
        total = out[p]
        for j in range(total.size):
            total[j] = 0
        for e in range(start[p], start[p + 1]):
            _prefetch(x, src[min(e + ahead, last)])
            _prefetch(g, dst[min(e + ahead, last)])
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
    for p in range(lo, hi):
        total = out[p]
        for j in range(total.size):
            total[j] = 0
        for e in range(start[p], start[p + 1]):
            _prefetch(x, src[min(e + ahead, last)])
            _prefetch(g, dst[min(e + ahead, last)])
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
def run_starts(key, num_keys):  # type: ignore[no-untyped-def]
    """Starts of the runs of equal keys, once these are sorted."""
    start = np.zeros(num_keys + 1, np.int64)
    for k in key:
        start[k + 1] += 1
    for k in range(num_keys):
        start[k + 1] += start[k]
    return start


@_compiled
def counting_order(key, num_keys):  # type: ignore[no-untyped-def]
    """Starts of the runs of equal keys, and the stable order that sorts them."""
    start = run_starts(key, num_keys)
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
