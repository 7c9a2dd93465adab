import pytest
import torch

from sheafprop.sheaf import DiagonalSheaf, PropagationPlan, QuaternionSheaf


@pytest.mark.parametrize("kind", [DiagonalSheaf, QuaternionSheaf])
def test_a_given_identity_is_one(kind):
    """What is left out is the one of the algebra, not a row of ones."""
    table = torch.randn(3, 8, dtype=torch.float64)
    one = torch.ones(3, 8).double() if kind is DiagonalSheaf else torch.eye(4).double()[:1]
    one = one if kind is DiagonalSheaf else one.repeat(3, 2)
    short, written = kind(None, table), kind(one, table)
    x, relation = torch.randn(5, 8, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])
    assert torch.equal(short.restrict(x, relation, "head"), x)
    for ours, theirs in zip(short.block_terms(), written.block_terms(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(short.map_parameters("head", relation), one[:1].expand(5, 8))


@pytest.mark.parametrize(("kind", "lost"), [(DiagonalSheaf, 1), (QuaternionSheaf, 4)])
def test_squares_that_underflow_are_counted(kind, lost):
    """A small number freezes its coordinate, or its quaternion."""
    sheaf = kind(torch.tensor([[0, 0, 1e-30, 0]]))
    edges = torch.tensor([[0], [1]])
    known = torch.tensor([False, True])
    with pytest.warns(UserWarning, match=f"the maps of {lost} coordinates of free vertices are"):
        PropagationPlan(edges, torch.tensor([0]), sheaf, 2, boundary_mask=known)
