from contextlib import nullcontext

import pytest
import torch

from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.pairwise_squares import (
    chunks_of,
    close_pairs,
    mapped_squares,
    near_squares,
    scaled_squares,
    square_lengths,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_squares_are_those_of_differences(dtype, count):
    rows, target = torch.randn(600, 5, dtype=dtype), torch.randn(count, 5, dtype=dtype)
    maps, matrix = torch.randn(count, 5, dtype=dtype), torch.randn(5, 5, dtype=dtype)

    def squares(images):
        return torch.linalg.vector_norm(images - target.unsqueeze(1), dim=2) ** 2

    close = torch.testing.assert_close
    close(near_squares(rows, target), squares(rows))
    kept = square_lengths(rows)
    out = torch.empty(count, 600, dtype=torch.float64)
    assert near_squares(rows, target, lambda: kept, out) is out
    close(out, squares(rows))
    close(scaled_squares(rows, maps, target), squares(rows * maps.unsqueeze(1)))
    close(mapped_squares(rows, matrix, target), squares(rows @ matrix.T))


@pytest.mark.parametrize("backend", [nullcontext, lambda: use_backend("torch")])
@pytest.mark.parametrize("kind", ["near", "scaled", "mapped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("gap", [3e-2, 1e-3, 2e-5, 0.0])
def test_close_pairs_keep_their_digits(gap, count, dtype, kind, backend):
    g = torch.Generator().manual_seed(0)
    rows, maps, step = (torch.randn(n, 6, dtype=dtype, generator=g) for n in (40, count, count))
    matrix = torch.randn(6, 6, dtype=dtype, generator=g)
    double = torch.promote_types(dtype, torch.float64)

    def images(x, scale, m):
        x = x.unsqueeze(0)
        return {"near": x.expand(count, -1, -1), "scaled": x * scale.unsqueeze(1)}.get(
            kind, x @ m.T
        )

    target = images(rows, maps, matrix).expand(count, -1, -1)[range(count), range(5, 5 + count)]
    target = target + gap * step
    with backend():
        if kind == "near":
            found = near_squares(rows, target)
        elif kind == "scaled":
            found = scaled_squares(rows, maps, target)
        else:
            found = mapped_squares(rows, matrix, target)
    image = images(rows.to(double), maps.to(double), matrix.to(double))
    exact = torch.linalg.vector_norm(image - target.to(double).unsqueeze(1), dim=2) ** 2
    # Up to 14 roundings: of half of the digits by a product, of an image by its difference.
    eps = torch.finfo(torch.float32).eps
    off = 14 * eps * torch.linalg.vector_norm(image, dim=2)
    limit = 14 * eps**0.5 * exact + 2 * exact.sqrt() * off + off**2
    assert bool(((found - exact).abs() <= limit).all())
    assert bool((found >= 0).all())


def test_only_close_pairs_are_computed_again():
    rows, target = torch.randn(30, 6), torch.randn(4, 6)
    target[2] = rows[7] * (1 + 1e-4)
    squares = torch.cdist(target, rows).square()
    own, other = square_lengths(target).unsqueeze(1), square_lengths(rows)
    for given in (other, other.expand(4, -1)):
        assert [index.tolist() for index in close_pairs(squares, own, given)] == [[2], [7]]
    i, _ = close_pairs(squares, own, other, torch.full((4, 1), 1e8))
    assert i.numel() == 4 * 30
    assert close_pairs(squares[:0], own[:0], other)[0].numel() == 0


def test_chunks_hold_every_row_once():
    parts = chunks_of(1000, 2**30)
    assert [i for part in parts for i in range(1000)[part]] == list(range(1000))
    assert chunks_of(0, 3) == []
