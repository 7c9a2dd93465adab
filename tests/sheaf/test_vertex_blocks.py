import warnings

import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.nn import SheafConv
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf
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


EDGE, LOOP = torch.tensor([[0], [1]]), torch.tensor([[1], [1]])
RELATION, KNOWN = torch.tensor([0]), torch.tensor([True, False])


def _sheaf(kind, head, tail, dtype):
    maps = [torch.full((1, 2), size, dtype=torch.float64).to(dtype) for size in (head, tail)]
    if kind == "diagonal":
        return DiagonalSheaf(*maps)
    maps = [torch.diag_embed(m).requires_grad_(kind == "dense, trained") for m in maps]
    return DenseSheaf(*maps)


@pytest.mark.parametrize("normalization", ["block", "degree", None])
@pytest.mark.parametrize("kind", ["diagonal", "dense", "dense, trained"])
@pytest.mark.parametrize(
    ("edge", "head", "tail", "dtype", "found"),
    [
        (EDGE, 3e-29, 2e-30, torch.float32, True),
        (EDGE, 4e-21, 4e-21, torch.float32, True),
        (EDGE, 2e-11, 1e-12, torch.float32, False),
        (EDGE, 1e-28, 1e-29, torch.float64, False),
        (EDGE, 1e-28, 1e-180, torch.float64, True),
        (EDGE, 0.0, 0.0, torch.float32, False),
        # What counts at a loop is the difference of its maps.
        (LOOP, 3e-29, 1e-29, torch.float32, True),
        (LOOP, 3e-29, 3e-29, torch.float32, False),
        (LOOP, 3.0, 1.0, torch.float32, False),
    ],
)
def test_maps_too_small_for_their_squares_are_reported(
    edge, head, tail, dtype, found, kind, normalization
):
    sheaf = _sheaf(kind, head, tail, dtype)
    x = torch.tensor([[3.0, -2], [1, 1]], dtype=dtype)
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        SheafConv(normalization=normalization)(x, edge, RELATION, sheaf, boundary_mask=KNOWN)
    assert any("maps of 2 coordinates" in str(w.message) for w in log) == found


@pytest.mark.parametrize("kind", ["diagonal", "dense", "dense, trained"])
@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_maps_too_large_for_their_squares_are_refused(kind, normalization):
    sheaf = _sheaf(kind, 3e24, 7e23, torch.float32)
    layer = SheafConv(normalization=normalization, step_size=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DivergenceError, match=r"vertex 0.*weights down"):
            layer(torch.ones(2, 2), EDGE, RELATION, sheaf, boundary_mask=KNOWN)


@pytest.mark.parametrize(
    "sheaf",
    [
        IdentitySheaf(relations=1),
        DiagonalSheaf(torch.ones(1, 2)),
        DenseSheaf(torch.eye(2).unsqueeze(0), torch.eye(2).unsqueeze(0)),
    ],
)
@pytest.mark.parametrize("normalization", ["block", None])
def test_weights_too_small_for_an_inverse_are_reported(sheaf, normalization):
    weight = torch.tensor([7e-41])
    with pytest.warns(UserWarning, match="free vertices are not zero.*weights up"):
        SheafConv(normalization=normalization)(
            torch.ones(2, 2), EDGE, RELATION, sheaf, edge_weight=weight, boundary_mask=KNOWN
        )
