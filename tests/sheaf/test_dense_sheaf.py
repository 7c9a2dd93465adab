import pytest
import torch

from sheafprop.sheaf import DenseSheaf
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
    assert sheaf.promoted(torch.float64).shares_maps
    assert not DenseSheaf(maps, maps.clone()).shares_maps
    assert sheaf.is_injective("head", 1e-6).tolist() == [False] * 3
