import pytest
import torch

from sheafprop.kernels.rows import add_rows, scale_rows, take_rows
from tests.kernels.cases import random

DTYPES = [torch.float64, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -2, -1])
def test_they_are_the_operations_of_torch(dtype, dim):
    x, rows = random(4, 3, 5, dtype=dtype), random(4, 3, 5, dtype=dtype, seed=1)
    index = torch.tensor([1, 0, 1, 2, 1])[: x.shape[dim]]
    assert torch.equal(take_rows(x, dim, index), x.index_select(dim, index))
    assert torch.allclose(add_rows(x, dim, index, rows), x.index_add(dim, index, rows))
    swapped = x.transpose(0, 1).conj() if dtype.is_complex else x.transpose(0, 1)
    some = index[: swapped.shape[dim]]
    part = rows.transpose(0, 1).narrow(dim, 0, some.numel())
    assert torch.equal(take_rows(swapped, dim, some), swapped.index_select(dim, some))
    assert torch.allclose(add_rows(swapped, dim, some, part), swapped.index_add(dim, some, part))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(dtype):
    x, rows = random(4, 3, dtype=dtype).requires_grad_(), random(2, 3, dtype=dtype).requires_grad_()
    index = torch.tensor([3, 3])
    assert torch.autograd.gradcheck(lambda x: take_rows(x, 0, index), x)
    assert torch.autograd.gradcheck(lambda x, r: add_rows(x, 0, index, r), (x, rows))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32, torch.bfloat16])
def test_rows_take_a_length_and_zeros_stay(dtype):
    x = random(4, 3, 5, dtype=dtype)
    x[1, 2] = 0
    out = scale_rows(x, 2.5)
    length = torch.linalg.vector_norm(x.to(torch.promote_types(dtype, torch.float64)), dim=-1)
    expected = x * (2.5 / length.masked_fill(length == 0, 1)).unsqueeze(-1)
    assert out.dtype == dtype
    assert torch.allclose(out.to(expected.dtype), expected, rtol=8 * torch.finfo(dtype).eps)
    assert (out[1, 2] == 0).all()
