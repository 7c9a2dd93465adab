"""The loops over neighbours as Triton kernels, for CUDA.

One program adds up one row of the result in a block of columns, entry by entry, so that sums have
a fixed order and no message is held. Complex features come as pairs of real columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 128


@triton.jit
def _csr_kernel(  # type: ignore[no-untyped-def]
    start, col, value, x, own, gain, constant, out,
    width, constant_width, own_row, gain_row, f0, f1, f2,
    KEEPS: tl.constexpr, CONSTANT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < width
    total = tl.zeros([BLOCK], dtype=out.dtype.element_ty)
    if CONSTANT:
        total += tl.load(constant + v * constant_width + j % constant_width, mask=inside, other=0)
    for e in range(tl.load(start + v), tl.load(start + v + 1)):
        u = tl.load(col + e).to(tl.int64)
        total += tl.load(value + e) * tl.load(x + u * width + j, mask=inside, other=0)
    total = f2 * tl.load(gain + v * gain_row) * total
    if KEEPS:
        a = f0 + f1 * tl.load(own + v * own_row)
        total += a * tl.load(x + v * width + j, mask=inside, other=0)
    tl.store(out + v * width + j, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _typed_kernel(  # type: ignore[no-untyped-def]
    start, col, label, weight, table, x, own, gain, constant, out,
    width, constant_width, d, plane, own_row, own_col, gain_row, gain_col, f0, f1, f2,
    PAIR: tl.constexpr, WEIGHTED: tl.constexpr, KEEPS: tl.constexpr, CONSTANT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0).to(tl.int64)
    # k counts numbers, real or complex; the columns of number k begin at k * PAIR.
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k * PAIR < width
    j = k % d
    real = tl.zeros([BLOCK], dtype=out.dtype.element_ty)
    imaginary = tl.zeros([BLOCK], dtype=out.dtype.element_ty)
    if CONSTANT:
        at = constant + v * constant_width + (k * PAIR) % constant_width
        real += tl.load(at, mask=inside, other=0)
        if PAIR == 2:
            imaginary += tl.load(at + 1, mask=inside, other=0)
    for e in range(tl.load(start + v), tl.load(start + v + 1)):
        u = tl.load(col + e).to(tl.int64)
        row = table + tl.load(label + e).to(tl.int64) * d + j
        p = tl.load(x + u * width + k * PAIR, mask=inside, other=0)
        if WEIGHTED:
            p *= tl.load(weight + e)
        a = tl.load(row, mask=inside, other=0)
        real += a * p
        if PAIR == 2:
            q = tl.load(x + u * width + k * PAIR + 1, mask=inside, other=0)
            if WEIGHTED:
                q *= tl.load(weight + e)
            b = tl.load(row + plane, mask=inside, other=0)
            real -= b * q
            imaginary += a * q + b * p
    g = f2 * tl.load(gain + v * gain_row + j * gain_col, mask=inside, other=0)
    real *= g
    imaginary *= g
    at_out = out + v * width + k * PAIR
    if KEEPS:
        c = f0 + f1 * tl.load(own + v * own_row + j * own_col, mask=inside, other=0)
        real += c * tl.load(x + v * width + k * PAIR, mask=inside, other=0)
        if PAIR == 2:
            imaginary += c * tl.load(x + v * width + k * PAIR + 1, mask=inside, other=0)
    tl.store(at_out, real.to(out.dtype.element_ty), mask=inside)
    if PAIR == 2:
        tl.store(at_out + 1, imaginary.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _label_kernel(  # type: ignore[no-untyped-def]
    start, dst, src, weight, x, g, out, width, d,
    PAIR: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < d
    real = tl.zeros([BLOCK], dtype=out.dtype.element_ty)
    imaginary = tl.zeros([BLOCK], dtype=out.dtype.element_ty)
    for e in range(tl.load(start + piece), tl.load(start + piece + 1)):
        u = tl.load(src + e).to(tl.int64) * width
        v = tl.load(dst + e).to(tl.int64) * width
        for base in range(0, width, d * PAIR):
            at = base + k * PAIR
            p = tl.load(x + u + at, mask=inside, other=0)
            r = tl.load(g + v + at, mask=inside, other=0)
            if WEIGHTED:
                r *= tl.load(weight + e)
            real += p * r
            if PAIR == 2:
                q = tl.load(x + u + at + 1, mask=inside, other=0)
                s = tl.load(g + v + at + 1, mask=inside, other=0)
                if WEIGHTED:
                    s *= tl.load(weight + e)
                real += q * s
                imaginary += p * s - q * r
    at_out = out + piece * d * PAIR + k * PAIR
    tl.store(at_out, real.to(out.dtype.element_ty), mask=inside)
    if PAIR == 2:
        tl.store(at_out + 1, imaginary.to(out.dtype.element_ty), mask=inside)


def csr_rows(
    start: Tensor,
    col: Tensor,
    value: Tensor,
    x: Tensor,
    own: Tensor,
    gain: Tensor,
    constant: Tensor,
    factors: tuple[float, float, float],
    out: Tensor,
) -> None:
    """As :func:`sheafprop.kernels.numba_loops.csr_rows`, for all rows."""
    num_rows, width = out.shape
    with torch.cuda.device_of(out):
        _csr_kernel[(num_rows, triton.cdiv(width, _BLOCK))](
            start, col, value, x, own, gain, constant, out,
            width, constant.shape[1], int(own.shape[0] > 1), int(gain.shape[0] > 1), *factors,
            KEEPS=factors[:2] != (0, 0), CONSTANT=constant.shape[0] > 0, BLOCK=_BLOCK,
        )  # fmt: skip


def typed_rows(
    start: Tensor,
    col: Tensor,
    label: Tensor,
    weight: Tensor | None,
    table: Tensor,
    x: Tensor,
    own: Tensor,
    gain: Tensor,
    constant: Tensor,
    factors: tuple[float, float, float],
    out: Tensor,
) -> None:
    """As ``real_rows``, and for a table ``[2, rows, d]`` as ``complex_rows``, for all rows."""
    num_rows, width = out.shape
    pair, d = table.dim() - 1, table.shape[-1]
    strides = []
    for scale in (own, gain):
        strides += [scale.shape[1] * (scale.shape[0] > 1), int(scale.shape[1] > 1)]
    with torch.cuda.device_of(out):
        _typed_kernel[(num_rows, triton.cdiv(width // pair, _BLOCK))](
            start, col, label, x if weight is None else weight, table, x, own, gain, constant, out,
            width, constant.shape[1], d, table.shape[-2] * d, *strides, *factors,
            PAIR=pair, WEIGHTED=weight is not None, KEEPS=factors[:2] != (0, 0),
            CONSTANT=constant.shape[0] > 0, BLOCK=_BLOCK,
        )  # fmt: skip


def label_sums(
    start: Tensor, dst: Tensor, src: Tensor, weight: Tensor | None, x: Tensor, g: Tensor,
    is_complex: bool, out: Tensor,
) -> None:  # fmt: skip
    """As ``real_label_sums`` or ``complex_label_sums``, for all pieces."""
    pair = 2 if is_complex else 1
    d = out.shape[1] // pair
    with torch.cuda.device_of(out):
        _label_kernel[(out.shape[0], triton.cdiv(d, _BLOCK))](
            start, dst, src, x if weight is None else weight, x, g, out, x.shape[1], d,
            PAIR=pair, WEIGHTED=weight is not None, BLOCK=_BLOCK,
        )  # fmt: skip
