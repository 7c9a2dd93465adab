import pytest
import torch

from sheafprop.kernels.pairwise_squares import (
    chunks_of,
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


def test_chunks_hold_every_row_once():
    parts = chunks_of(1000, 2**30)
    assert [i for part in parts for i in range(1000)[part]] == list(range(1000))
    assert chunks_of(0, 3) == []
