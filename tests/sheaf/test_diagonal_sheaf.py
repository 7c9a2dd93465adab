import pytest
import torch

from sheafprop.sheaf import DiagonalSheaf
from tests.sheaf.kinds import assert_agrees


def turns():
    phase = torch.rand(3, 4, dtype=torch.float64)
    return torch.polar(torch.ones_like(phase), 6 * phase)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("present", [(True, False), (False, True), (True, True)])
def test_agrees_with_its_matrices(dtype, present):
    head, tail = (torch.randn(3, 4, dtype=dtype) if here else None for here in present)
    assert_agrees(DiagonalSheaf(head, tail, torch.randn(3, 4, dtype=dtype)))


def test_unitary_maps_agree_with_their_matrices():
    assert_agrees(DiagonalSheaf(turns()))
    assert_agrees(DiagonalSheaf(turns(), turns()))


def test_a_zero_on_the_diagonal_is_not_injective():
    head = torch.ones(2, 3)
    head[1, 2] = 0
    sheaf = DiagonalSheaf(head)
    assert sheaf.is_injective("head", 1e-6).tolist() == [True, False]
    assert sheaf.is_injective("tail", 1e-6).tolist() == [True, True]
