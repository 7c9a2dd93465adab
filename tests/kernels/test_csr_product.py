import pytest
import torch

from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.csr_product import CSRProduct, Terms, TiledSum
from tests.kernels.cases import random


@pytest.fixture
def entries():
    """Entries of a matrix ``[7, 5]``, some at the same place, and the matrix."""
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(6, (40,), generator=g), torch.randint(5, (40,), generator=g)
    value = random(40, dtype=torch.float64)
    dense = torch.zeros(7, 5, dtype=torch.float64)
    return row, col, value, dense.index_put((row, col), value, accumulate=True)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32], ids=str)
def test_equals_the_dense_product(entries, dtype, merge, backend):
    row, col, value, dense = entries
    x = random(5, 2, 3, dtype=dtype, seed=1)
    expected = torch.einsum("ij,jsk->isk", dense.to(dtype), x)
    with use_backend(backend):
        product = CSRProduct(row, col, value, 7, 5, merge=merge)
        assert product.nnz == (int((dense != 0).sum()) if merge else 40)
        torch.testing.assert_close(product(x), expected)
        there = product.transpose()(expected)
    torch.testing.assert_close(there, torch.einsum("ij,isk->jsk", dense.to(dtype), expected))
    torch.testing.assert_close(product.matrix().to_dense(), dense)


def test_gradients_of_any_order(entries):
    *places, _ = entries
    product = CSRProduct(*places, 7, 5)
    x = random(5, 2, dtype=torch.complex128).requires_grad_()
    assert torch.autograd.gradcheck(product, x)
    assert torch.autograd.gradgradcheck(product, x)


def test_a_combination_in_one_pass():
    row, col = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0, 2, 1])
    value = random(4, dtype=torch.float64)
    x = random(3, 2, 4, dtype=torch.float64, seed=1)
    own, gain = random(2, 3, 1, dtype=torch.float64, seed=2)
    constant = random(3, 1, 4, dtype=torch.float64, seed=3)
    with use_backend("numba"):
        product = CSRProduct(row, col, value, 3, 3)
        out = product.combine(x, Terms((0.5, -2.0, 3.0), own, gain, constant))
    expected = (0.5 - 2 * own.unsqueeze(1)) * x + 3 * gain.unsqueeze(1) * (product(x) + constant)
    assert torch.allclose(out, expected, atol=1e-13)


def test_some_rows_of_a_product():
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(6, (40,), generator=g), torch.randint(5, (40,), generator=g)
    product = CSRProduct(row, col, random(40, dtype=torch.float64), 7, 5)
    table = random(5, 3, 2, dtype=torch.float64, seed=1)
    for index in ([2, 0, 6, 6, 5], [], [6]):
        index = torch.tensor(index, dtype=torch.long)
        assert torch.allclose(product.rows(index)(table), product(table)[index], atol=1e-13)
        transposed = product.rows(index).transpose()(random(len(index), 2, dtype=torch.float64))
        assert transposed.shape == (5, 2)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("width", [0, 1, 5, 40])
@pytest.mark.parametrize("size", [1, 900, 9000])
def test_equals_the_product(size, width, dtype, backend):
    g = torch.Generator().manual_seed(0)
    num_rows, num_entries = 30, 200
    # The last rows stay empty.
    row = torch.randint(num_rows - 4, (num_entries,), generator=g)
    col = torch.randint(size, (num_entries,), generator=g)
    value = torch.rand(num_entries, generator=g, dtype=torch.float64).to(dtype.to_real())
    table = torch.randn(size, width, width, generator=g, dtype=dtype)
    table = table + table.mH
    dense = torch.zeros(num_rows, size, dtype=dtype)
    dense.index_put_((row, col), value.to(dtype), accumulate=True)
    expected = (dense @ table.flatten(1)).view(num_rows, width, width).triu()
    product = CSRProduct(row, col, value, num_rows, size)
    with use_backend(backend):
        sums = TiledSum(product, table)
        for first, last in ((0, num_rows), (0, 7), (5, 29), (29, 30)):
            out = torch.full((last - first, width, width), float("nan"), dtype=dtype)
            sums.fill(first, out)
            torch.testing.assert_close(out.triu(), expected[first:last])
