import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.sheaf.vertex_blocks import check_blocks, relative_tolerance, warn_of_lost


def test_the_cut_off_is_what_the_number_type_resolves():
    assert relative_tolerance(torch.float64, 4) == 1e-10
    assert relative_tolerance(torch.float32, 4) == 40 * torch.finfo(torch.float32).eps


def test_blocks_that_are_too_large_name_their_vertex():
    blocks = torch.ones(3, 2)
    check_blocks(blocks)
    blocks[1, 0] = torch.inf
    with pytest.raises(DivergenceError, match="free vertex 1 "):
        check_blocks(blocks)
    with pytest.raises(DivergenceError, match="free vertex 7 "):
        check_blocks(blocks, torch.tensor([9, 7, 8]))


def test_lost_coordinates_are_counted(recwarn):
    warn_of_lost(0, torch.float32)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="maps of 3 coordinates"):
        warn_of_lost(3, torch.float32)
