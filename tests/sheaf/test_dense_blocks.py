import torch

from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.sheaf.dense_blocks import DenseBlocks


def test_gradients_through_inverses_of_large_blocks_on_several_threads():
    size, g = 200, torch.Generator().manual_seed(0)
    rows = torch.randn(3, size, size + 20, generator=g, dtype=torch.float64)
    table = (rows @ rows.mT).requires_grad_()
    index = torch.arange(3)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ones = torch.ones(3, dtype=torch.float64)
        blocks = DenseBlocks(CSRProduct(index, index, ones, 3, 3), table, index, index)
        (gradient,) = torch.autograd.grad(blocks.inverses.sum(), table)
    finally:
        torch.set_num_threads(before)
    inverse = blocks.inverses.detach()
    torch.testing.assert_close(inverse @ table.detach(), torch.eye(size).double().expand(3, -1, -1))
    column = inverse.sum(2, keepdim=True)
    torch.testing.assert_close(gradient, -column @ column.mT)
