import pytest
import torch

from sheafprop.sheaf import IdentitySheaf
from tests.sheaf.kinds import assert_agrees


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_agrees_with_its_matrices(dtype):
    assert_agrees(IdentitySheaf(torch.randn(3, 4, dtype=dtype)))


def test_without_translations_it_takes_any_width():
    sheaf = IdentitySheaf(relations=3)
    assert (sheaf.stalk_dim, sheaf.dtype, sheaf.is_constant) == (None, None, True)
    assert torch.equal(sheaf.restriction_map(1, "head", 5), torch.eye(5))
    assert sheaf.select(torch.tensor([2])).num_relations == 1
    with pytest.raises(ValueError, match="give 'width'"):
        sheaf.matrices("tail")
