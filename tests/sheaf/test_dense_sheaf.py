import math

import pytest
import torch

from sheafprop.nn import SheafConv
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf
from tests.sheaf.kinds import assert_agrees


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("k", [3, 4, 6])
def test_agrees_with_its_matrices(dtype, k):
    head, tail = torch.randn(2, 3, k, 4, dtype=dtype)
    assert_agrees(DenseSheaf(head, tail, torch.randn(3, k, dtype=dtype)))


def test_a_shared_map_stays_one_tensor():
    maps = torch.randn(3, 2, 4)
    sheaf = DenseSheaf(maps, maps)
    assert sheaf.shares_maps
    assert sheaf.select(torch.tensor([1, 0])).shares_maps
    assert sheaf.promote(torch.float64).shares_maps
    assert not DenseSheaf(maps, maps.clone()).shares_maps
    assert sheaf.is_injective("head", 1e-6).tolist() == [False] * 3


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5])
def test_a_step_rounds_by_the_condition_number_of_the_block(condition):
    """The bound of the sheaf's docstring, for 12 sums of 4 terms and 3 roundings."""
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    scale = torch.logspace(0, -0.5 * math.log10(condition), 4, dtype=torch.float64)
    maps = (basis * scale).mT.unsqueeze(0).float()
    x = torch.randn(2, 4, generator=generator)
    graph = torch.tensor([[0], [1]]), torch.tensor([0])
    known = torch.tensor([True, False])
    found, exact = (
        SheafConv()(x.to(dtype), *graph, DenseSheaf(*[maps.to(dtype)] * 2), boundary_mask=known)
        for dtype in (torch.float32, torch.float64)
    )
    error = torch.linalg.vector_norm(found.double() - exact)
    eps = torch.finfo(torch.float32).eps
    assert error <= 15 * eps * condition * torch.linalg.vector_norm(x)
    diagonal = scale.unsqueeze(0).float()
    found, exact = (
        SheafConv()(
            x.to(dtype), *graph, DiagonalSheaf(*[diagonal.to(dtype)] * 2), boundary_mask=known
        )
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=15 * eps * float(x.abs().max()))
