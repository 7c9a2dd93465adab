import numpy as np
import pytest
import torch

from sheafprop.query import STRUCTURES, EnergyScorer, QueryBatch
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf
from tests.query.cases import NAMES, check_scores, energy_of
from tests.sheaf_cases import WIDTH, make_sheaf


def test_unitary_matrices_commute_with_the_precision():
    g = torch.Generator().manual_seed(0)
    maps = torch.linalg.qr(torch.randn(6, 4, 4, generator=g, dtype=torch.complex128))[0]
    sheaf = DenseSheaf(maps[:3], maps[3:])
    x = torch.randn(5, 1, 4, generator=g, dtype=torch.complex128)
    energy = energy_of(sheaf, x, "3p", [0, 0, 4, 2])
    torch.testing.assert_close(energy.precision()[0], torch.eye(4, dtype=torch.complex128) / 3)


def test_walking_backwards_exchanges_the_maps_and_turns_the_translation():
    sheaf = make_sheaf("dense, tall complex")
    turned = DenseSheaf(sheaf.tail, sheaf.head, -sheaf.translation)
    x = torch.randn(6, 2, WIDTH, dtype=torch.complex128)
    slots = torch.tensor([[0, 1, 2], [3, 3, 0]])
    batch = QueryBatch.of("2p", slots)
    backwards = QueryBatch.of("2p", slots + torch.tensor([0, 4, 4]))
    torch.testing.assert_close(
        EnergyScorer(sheaf, x).score(backwards), EnergyScorer(turned, x).score(batch)
    )


@pytest.mark.parametrize("condition", [1e2, 9e3])
def test_badly_conditioned_maps(condition):
    rng = np.random.default_rng(0)
    g = torch.Generator().manual_seed(0)
    scale = torch.logspace(0, -np.log10(condition), 4, dtype=torch.float64)
    u, v = (
        torch.linalg.qr(torch.randn(6, 4, 4, generator=g, dtype=torch.float64))[0] for _ in "uv"
    )
    maps = u @ torch.diag(scale) @ v
    x = torch.randn(6, 1, 4, generator=g, dtype=torch.float64)
    for name in NAMES:
        check_scores(
            DenseSheaf(maps[:3], maps[3:]), x, STRUCTURES[name], int(rng.integers(99)), False
        )


def test_diagonal_maps_as_matrices_have_the_same_energies():
    diagonal = make_sheaf("diagonal, complex pair")
    assert isinstance(diagonal, DiagonalSheaf)
    matrices = [torch.diag_embed(side) for side in (diagonal.head, diagonal.tail)]
    dense = DenseSheaf(*matrices, diagonal.translation)
    x = torch.randn(6, 2, WIDTH, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    for structure, slots in (("3p", [0, 1, 6, 3]), ("ip", [2, 5, 4, 0, 7])):
        one = energy_of(diagonal, x, structure, slots)
        other = energy_of(dense, x, structure, slots)
        torch.testing.assert_close(other.precision(), one.precision())
        torch.testing.assert_close(other.centre, one.centre)
        torch.testing.assert_close(other.constant, one.constant)
