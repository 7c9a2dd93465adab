import pytest
import torch

from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.kernels.tiled_sum import TiledSum


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
