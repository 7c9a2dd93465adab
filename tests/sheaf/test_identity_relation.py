import pytest
import torch

from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, QuaternionSheaf
from sheafprop.sheaf.identity_relation import add_identity_relation

torch.manual_seed(0)
_MAP, _OTHER, _WIDE = torch.randn(3, 4, 4), torch.randn(3, 4, 4), torch.randn(3, 2, 4)
_TABLE = torch.randn(3, 4)
_PHASE = torch.polar(torch.ones(3, 4), torch.randn(3, 4))
SHEAVES = {
    "translations": IdentitySheaf(torch.randn(3, 4)),
    "no translations": IdentitySheaf(relations=3),
    "diagonal": DiagonalSheaf(torch.randn(3, 4), None, torch.randn(3, 4)),
    "complex": DiagonalSheaf(None, _PHASE),
    "one table": DiagonalSheaf(_TABLE, _TABLE),
    "quaternions": QuaternionSheaf(torch.randn(3, 4), None, torch.randn(3, 4)),
    "dense": DenseSheaf(_MAP, _OTHER),
    "shared": DenseSheaf(_MAP, _MAP, torch.randn(3, 4)),
    "small edge stalks": DenseSheaf(_WIDE, _WIDE, torch.randn(3, 2)),
    "large edge stalks": DenseSheaf(_WIDE.mT.contiguous(), _WIDE.mT.contiguous()),
}


@pytest.mark.parametrize("name", SHEAVES)
def test_the_new_relation_is_the_identity_and_the_others_keep_their_energies(name):
    sheaf = SHEAVES[name]
    more = add_identity_relation(sheaf)
    width = sheaf.stalk_dim or 4
    assert (more.num_relations, more.dtype, more.shares_maps) == (
        4,
        sheaf.dtype,
        sheaf.shares_maps,
    )
    if not isinstance(sheaf, DenseSheaf):
        assert type(more) is type(sheaf)
    x = torch.randn(6, width, dtype=sheaf.dtype)
    for side in ("head", "tail"):
        matrix = more.restriction_map(3, side, width)
        assert torch.equal(matrix, torch.eye(len(matrix), width, dtype=matrix.dtype))
    shift = more.translation_of(torch.tensor([3]))
    assert shift is None or not bool(shift.any())
    edges = torch.tensor([0, 1, 2, 0, 1, 2])
    for side in ("head", "tail"):
        old = sheaf.pairwise_energy(x, x, edges, side)
        found = more.pairwise_energy(x, x, edges, side)
        torch.testing.assert_close(found, old, atol=1e-4, rtol=1e-4)
    apart = torch.cdist(torch.view_as_real(x).flatten(1), torch.view_as_real(x).flatten(1)) ** 2 \
        if x.is_complex() else torch.cdist(x, x) ** 2  # fmt: skip
    new = more.pairwise_energy(x, x, torch.full((6,), 3), "tail")
    torch.testing.assert_close(new, apart, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SHEAVES)
def test_a_scale_is_in_the_maps_of_the_new_relation_with_its_gradient(name):
    sheaf = SHEAVES[name]
    scale = torch.tensor(2.25, requires_grad=True)
    width = sheaf.stalk_dim or 4
    more = add_identity_relation(sheaf, scale, width)
    plain = add_identity_relation(sheaf)
    x = torch.randn(5, width, dtype=sheaf.dtype)
    for side in ("head", "tail"):
        for kind in range(3):
            old = plain.restriction_map(kind, side, width)
            torch.testing.assert_close(more.restriction_map(kind, side, width), old)
        kinds = torch.full((5,), 3)
        found = more.restrict(x, kinds, side)
        torch.testing.assert_close(found[:, :width], 1.5 * x)
        (slope,) = torch.autograd.grad(found.abs().square().sum(), scale, retain_graph=True)
        torch.testing.assert_close(slope, x.abs().square().sum())


@pytest.mark.parametrize("name", SHEAVES)
def test_of_no_relation_at_all_it_makes_one(name):
    none = SHEAVES[name].select(torch.zeros(0, dtype=torch.int64))
    more = add_identity_relation(none)
    assert more.num_relations == 1
    width = more.stalk_dim or 4
    x = torch.randn(2, width, dtype=more.dtype)
    assert torch.equal(more.restrict(x, torch.zeros(2, dtype=torch.int64), "tail")[:, :width], x)
