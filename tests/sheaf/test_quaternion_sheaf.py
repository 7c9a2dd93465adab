import pytest
import torch

from sheafprop.sheaf import DenseSheaf, QuaternionSheaf
from sheafprop.testing import SheafTestCase
from tests.sheaf.kinds import assert_agrees


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(*shape, seed=0):
    rows = torch.nn.functional.normalize(draw(*shape, seed=seed).unflatten(-1, (-1, 4)), dim=-1)
    return rows.flatten(-2)


class TestQuaternionSheaf(SheafTestCase):
    def make_sheaf(self, seed):
        return QuaternionSheaf(*(draw(4, 8, seed=3 * seed + i) for i in range(3)))


class TestUnitQuaternions(SheafTestCase):
    def make_sheaf(self, seed):
        return QuaternionSheaf(None, unit(4, 8, seed=seed))


@pytest.mark.parametrize("present", [(True, False), (False, True), (True, True)])
def test_agrees_with_its_matrices(present):
    head, tail = (draw(3, 4, seed=i) if here else None for i, here in enumerate(present))
    assert_agrees(QuaternionSheaf(head, tail, draw(3, 4, seed=5)))
    units = (unit(3, 4, seed=i) if here else None for i, here in enumerate(present))
    assert_agrees(QuaternionSheaf(*units))


def test_products_are_those_of_hamilton():
    """i j = k, j k = i, k i = j, and each squared is -1; in the second block, too."""
    one, i, j, k = torch.eye(4, dtype=torch.float64)
    for a, b, product in [(i, j, k), (j, k, i), (k, i, j), (j, i, -k), (i, i, -one), (one, k, k)]:
        row = torch.cat([one, a]).unsqueeze(0)
        image = QuaternionSheaf(row).restrict(torch.cat([j, b])[None], torch.tensor([0]), "head")
        assert image.tolist() == [torch.cat([j, product]).tolist()]


def test_maps_are_orthogonal_up_to_the_modulus_and_do_not_commute():
    sheaf = QuaternionSheaf(draw(2, 4))
    first, second = sheaf.matrices("head")
    for matrix, row in zip((first, second), sheaf.head, strict=True):
        eye = torch.eye(4, dtype=torch.float64)
        torch.testing.assert_close(matrix.T @ matrix, row.square().sum() * eye)
        assert float(torch.linalg.det(matrix)) > 0
    assert not torch.allclose(first @ second, second @ first, atol=0.1)


def test_a_quaternion_of_zeros_is_not_injective_and_frozen():
    head = unit(2, 8)
    head[1, 4:] = 0
    sheaf = QuaternionSheaf(head)
    assert sheaf.is_injective("head", 1e-6).tolist() == [True, False]
    assert sheaf.is_injective("tail", 1e-6).tolist() == [True, True]
    queries, candidates = draw(2, 8, seed=1), draw(5, 8, seed=2)
    relation = torch.tensor([1, 0])
    dense = DenseSheaf(sheaf.matrices("head"), sheaf.matrices("tail"))
    for side in ("head", "tail"):
        torch.testing.assert_close(
            sheaf.pairwise_energy(queries, candidates, relation, side),
            dense.pairwise_energy(queries, candidates, relation, side),
        )


def test_columns_are_cut_between_quaternions_alone():
    sheaf = QuaternionSheaf(unit(2, 8))
    for columns in (slice(2, 8), slice(0, 6), slice(0, 8, 2)):
        with pytest.raises(ValueError, match="quaternions belong together in blocks of 4"):
            sheaf.coupling(None, columns)


def test_complex_features_are_turned_in_both_parts():
    sheaf = QuaternionSheaf(draw(2, 4), draw(2, 4, seed=1))
    assert sheaf.promote(torch.complex64).head.dtype == torch.float32
    x, relation = torch.complex(draw(2, 4, seed=2), draw(2, 4, seed=3)), torch.tensor([1, 0])
    image = sheaf.restrict(x, relation, "tail")
    torch.testing.assert_close(image.real, sheaf.restrict(x.real, relation, "tail"))
    torch.testing.assert_close(image.imag, sheaf.restrict(x.imag, relation, "tail"))
