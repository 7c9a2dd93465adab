"""Sums in registers: each width is cut into blocks, whose numbers do not depend on the cut."""

import numpy as np
import pytest

pytest.importorskip("numba")

from sheafprop.kernels.numba_loops import complex_rows, csr_rows, real_rows

ROWS, SOURCES, LABELS = 23, 17, 5
WIDTHS = [1, 2, 3, 5, 8, 15, 16, 31, 33, 63, 64, 65, 127, 200]


def entries(index, labels, seed=0):
    """Starts, sources and labels of rows of no to eleven entries."""
    g = np.random.default_rng(seed)
    start = np.concatenate([[0], g.permutation(np.arange(ROWS) % 12).cumsum()])
    col = g.integers(SOURCES, size=start[-1]).astype(index)
    return start, col, g.integers(LABELS, size=start[-1]).astype(labels)


def run(loop, x, *given):
    """The sums of a loop without other terms."""
    one, none = np.ones((1, 1), x.dtype), np.empty((0, 1), x.dtype)
    out = np.full((ROWS, x.shape[1]), np.nan, x.dtype)
    factors = np.array([0, 0, 1], x.dtype)
    loop(*given, x, one, one, none, factors, 9, out, 0, ROWS)
    return out


def numbers(*shape, dtype, seed=0, whole=False):
    """Drawn numbers; small integers, whose sums are exact, if ``whole``."""
    g = np.random.default_rng(seed)
    return (g.integers(-4, 5, shape) if whole else g.standard_normal(shape)).astype(dtype)


def written_out(start, col, factor, x):
    """``out_v = sum_e factor_e * x[col_e]``, whose factors repeat in every section."""
    out = np.zeros((ROWS, x.shape[1]), x.dtype)
    for v in range(ROWS):
        for e in range(start[v], start[v + 1]):
            out[v] += np.resize(factor[e], x.shape[1]) * x[col[e]]
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("index", "value"),
    [(np.int32, None), (np.int32, np.uint8), (np.int32, float), (np.int64, None)],
)
def test_sums_of_every_width_equal_the_written_ones(dtype, index, value):
    start, col, _ = entries(index, np.int16)
    g = np.random.default_rng(1)
    factor = g.integers(1, 4, col.size)
    given = None if value is None else factor.astype(dtype if value is float else value)
    factor = np.ones_like(factor) if value is None else factor
    for width in WIDTHS:
        x = numbers(SOURCES, width, dtype=dtype, whole=True)
        expected = written_out(start, col, factor[:, None], x)
        assert np.array_equal(run(csr_rows, x, start, col, given), expected), width


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sections", [1, 3])
def test_products_of_every_width_equal_the_written_ones(dtype, weighted, sections):
    start, col, label = entries(np.int32, np.int16)
    weight = numbers(col.size, dtype=dtype, whole=True, seed=2) if weighted else None
    scale = np.ones(col.size) if weight is None else weight
    for width in WIDTHS:
        table = numbers(2, LABELS, width, dtype=dtype, whole=True, seed=3)
        x = numbers(SOURCES, sections * width, dtype=dtype, whole=True)
        expected = written_out(start, col, scale[:, None] * table[0][label], x)
        found = run(real_rows, x, start, col, label, weight, table[0])
        assert np.array_equal(found, expected), width
        pairs = numbers(SOURCES, 2 * sections * width, dtype=dtype, whole=True)
        z = pairs[:, ::2] + 1j * pairs[:, 1::2]
        c = (table[0] + 1j * table[1])[label]
        expected = written_out(start, col, scale[:, None] * c, z)
        found = run(complex_rows, pairs, start, col, label, weight, table)
        assert np.array_equal(found[:, ::2] + 1j * found[:, 1::2], expected), width


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_alone_have_the_bits_of_the_whole(dtype):
    start, col, label = entries(np.int32, np.int16, 4)
    weight = np.random.default_rng(5).random(col.size).astype(dtype)
    x = numbers(SOURCES, 150, dtype=dtype)
    table = numbers(2, LABELS, 150, dtype=dtype, seed=6)
    summed = run(csr_rows, x, start, col, weight)
    real = run(real_rows, x, start, col, label, weight, table[0])
    pairs = run(complex_rows, x, start, col, label, weight, table[:, :, :75].copy())
    for first, last in ((0, 1), (1, 8), (3, 36), (64, 128), (5, 149), (149, 150)):
        some = np.ascontiguousarray(x[:, first:last])
        found = run(csr_rows, some, start, col, weight)
        assert np.array_equal(found, summed[:, first:last])
        planes = np.ascontiguousarray(table[:, :, first:last])
        found = run(real_rows, some, start, col, label, weight, planes[0])
        assert np.array_equal(found, real[:, first:last])
        begin, end = first // 2, (last + 1) // 2
        some = np.ascontiguousarray(x[:, 2 * begin : 2 * end])
        planes = np.ascontiguousarray(table[:, :, begin:end])
        found = run(complex_rows, some, start, col, label, weight, planes)
        assert np.array_equal(found, pairs[:, 2 * begin : 2 * end])
