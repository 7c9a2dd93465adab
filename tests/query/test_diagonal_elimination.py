import pytest
import torch

from sheafprop.query import EnergyScorer, InteriorPrior
from sheafprop.query.dense_elimination import DenseElimination
from sheafprop.query.diagonal_elimination import DiagonalElimination
from tests.query.cases import energy_of, model_and_vectors
from tests.sheaf_cases import WIDTH, make_sheaf


def test_2i_of_transe_is_centred_on_the_mean_of_the_translated_sources():
    sheaf, x = model_and_vectors("transe", {}, sections=1)
    energy = energy_of(sheaf, x, "2i", [3, 0, 5, 2])
    b = sheaf.translation.detach()
    mean = (x[3, 0] + b[0] + x[5, 0] + b[2]) / 2
    torch.testing.assert_close(energy.centre[0, 0], mean)
    torch.testing.assert_close(energy.precision()[0], 2 * torch.eye(4, dtype=torch.float64))
    # The disagreement of the branches stays in the constant.
    gap = (x[3, 0] + b[0] - x[5, 0] - b[2]).square().sum() / 2
    torch.testing.assert_close(energy.constant[0, 0], gap)


def test_pi_of_transe_weighs_its_branches_one_half_and_one():
    sheaf, x = model_and_vectors("transe", {}, sections=1)
    energy = energy_of(sheaf, x, "pi", [3, 0, 1, 5, 2])
    b = sheaf.translation.detach()
    far, near = x[3, 0] + b[0] + b[1], x[5, 0] + b[2]
    torch.testing.assert_close(energy.centre[0, 0], (far / 2 + near) / 1.5)
    torch.testing.assert_close(energy.precision()[0], 1.5 * torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["identity", "diagonal, unitary", "quaternion, unit"])
def test_precision_of_paths_is_that_of_resistors_in_series(kind):
    """Unitary maps commute with the precision: it is 1, 1/2, 1/3, and wp/(w + p) with weights."""
    sheaf = make_sheaf(kind)
    complex_ = sheaf.dtype.is_complex
    x = torch.randn(5, 1, WIDTH, dtype=torch.complex128 if complex_ else torch.float64)
    for hops in (1, 2, 3):
        entries = energy_of(sheaf, x, f"{hops}p", [0] + [1] * hops).entries
        torch.testing.assert_close(entries, torch.full((1, 1), 1 / hops, dtype=torch.float64))
    weight = torch.tensor([[2.0, 0.5]], dtype=torch.float64)
    entries = energy_of(sheaf, x, "2p", [0, 1, 2], weight).entries
    torch.testing.assert_close(entries, torch.full((1, 1), 0.4, dtype=torch.float64))


def test_a_prior_that_tells_the_columns_of_quaternions_apart_takes_matrices():
    sheaf, x = make_sheaf("quaternion, unit"), torch.randn(5, 1, WIDTH, dtype=torch.float64)
    prior = InteriorPrior.of_facts(sheaf, x, torch.tensor([[0, 1, 2], [3, 1, 4], [1, 0, 2]]))
    assert isinstance(EnergyScorer(sheaf, x).elimination, DiagonalElimination)
    scorer = EnergyScorer(sheaf, x, interior_prior=prior)
    assert isinstance(scorer.elimination, DenseElimination)
    with pytest.raises(ValueError, match=r"must be diagonal, and so must the prior's .*Quaternion"):
        DiagonalElimination(sheaf, x, prior)


def test_dense_maps_are_refused():
    with pytest.raises(ValueError, match=r"must be diagonal, .* \(got a DenseSheaf\)"):
        DiagonalElimination(make_sheaf("dense, pair"), torch.zeros(2, 1, WIDTH))
