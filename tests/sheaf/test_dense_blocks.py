import numpy as np
import pytest
import torch

from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.sheaf.dense_blocks import DenseBlocks
from sheafprop.sheaf.vertex_blocks import relative_tolerance


def test_gradients_through_inverses_of_large_blocks_on_several_threads():
    size, g = 200, torch.Generator().manual_seed(0)
    rows = torch.randn(3, size, size + 20, generator=g, dtype=torch.float64)
    table = (rows @ rows.mT).requires_grad_()
    index = torch.arange(3)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ones = torch.ones(3, dtype=torch.float64)
        blocks = DenseBlocks(
            CSRProduct(index, index, ones, 3, 3), table, index, index, torch.float64
        )
        (gradient,) = torch.autograd.grad(blocks.inverses.sum(), table)
    finally:
        torch.set_num_threads(before)
    inverse = blocks.inverses.detach()
    torch.testing.assert_close(inverse @ table.detach(), torch.eye(size).double().expand(3, -1, -1))
    column = inverse.sum(2, keepdim=True)
    torch.testing.assert_close(gradient, -column @ column.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("size", [3, 40, 150])
def test_inverses_of_well_and_badly_conditioned_blocks(size, dtype):
    g = torch.Generator().manual_seed(0)
    double = torch.promote_types(dtype, torch.float64)
    basis, _ = torch.linalg.qr(torch.randn(6, size, size, generator=g, dtype=double))
    rtol = max(relative_tolerance(torch.float64, size), torch.finfo(dtype).eps)
    values = torch.ones(6, size, dtype=torch.float64)
    # Well conditioned; uncertain, yet regular; just regular; two singular ones; zero.
    values[1], values[2, 0], values[3, 0], values[4, :2], values[5] = 5, 2 * rtol, rtol / 2, 0, 0
    values[1, size // 2 :] = 5 * 3 * rtol
    table = (basis * values.unsqueeze(1)) @ basis.mH
    index, ones = torch.arange(6), torch.ones(6, dtype=dtype.to_real())
    blocks = DenseBlocks(CSRProduct(index, index, ones, 6, 6), table, index, index, dtype)
    assert blocks.singular.tolist() == [False] * 3 + [True] * 3
    assert blocks.num_frozen(size).tolist() == [0, 0, 0, 1, 2, size]
    expected = np.linalg.pinv(table.numpy(), rcond=rtol, hermitian=True)
    error = torch.linalg.matrix_norm(blocks.inverses.to(double) - torch.from_numpy(expected))
    # The condition number times the rounding of the blocks, and one rounding of the result.
    relative = 20 * torch.finfo(double).eps / rtol + torch.finfo(dtype).eps
    limit = relative * np.linalg.norm(expected, axis=(1, 2))
    assert bool((error <= torch.from_numpy(limit)).all())
