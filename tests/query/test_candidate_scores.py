import pytest
import torch

from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.rows import real_rows
from sheafprop.query import EnergyScorer, QueryBatch, candidate_scores, energy_scorer
from sheafprop.query.candidate_scores import CandidateScores, double, squares
from tests.query.brute_force import best_scores
from tests.query.cases import draw_batches, energy_of
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_sheaf


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_scores_are_roots_of_the_energy_at_each_candidate(kind):
    sheaf = make_sheaf(kind)
    dtype = sheaf.dtype or torch.float64
    x = torch.randn(9, 2, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(1))
    energy = energy_of(sheaf, x, "pi", [0, 1, 6, 3, 2])
    scores = CandidateScores(x, (0.5, 2.0))
    whole = scores(energy, None)[0]
    far = ("via", ("via", ("anchor", 0), 1, False, 1.0), 2, True, 1.0)
    tree = ("and", (far, ("via", ("anchor", 3), 2, False, 1.0)))
    want = torch.from_numpy(best_scores(tree, sheaf, x.numpy(), [0.5, 2.0]))
    torch.testing.assert_close(whole, want, rtol=0, atol=1e-8)
    some = torch.tensor([8, 2])
    torch.testing.assert_close(scores(energy, some)[0], whole[some])


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_many_candidates_are_scored_in_blocks(kind, monkeypatch):
    sheaf = make_sheaf(kind)
    complex_ = sheaf.dtype is not None and sheaf.dtype.is_complex
    x = torch.randn(30, 2, WIDTH, dtype=torch.complex128 if complex_ else torch.float64)
    batches = list(draw_batches(sheaf, x))
    whole = [EnergyScorer(sheaf, x).score(batch) for batch in batches]
    monkeypatch.setattr(candidate_scores, "_BLOCK_FEATURES", 40)
    monkeypatch.setattr(energy_scorer, "_BLOCK_SCORES", 100)
    monkeypatch.setattr(candidate_scores, "_TILE_SCORES", 16)
    for batch, scores in zip(batches, whole, strict=True):
        torch.testing.assert_close(EnergyScorer(sheaf, x).score(batch), scores, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["identity", "diagonal, real pair", "dense, pair"])
def test_single_precision_near_the_best_answer(kind):
    """An answer that fits exactly has energy zero, which a difference of squares would lose."""
    sheaf = make_sheaf(kind)
    x = torch.randn(50, 1, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = QueryBatch.of("2p", torch.tensor([[0, 1, 2], [4, 0, 6]]))
    x[7] = energy_of(sheaf, x, "2p", [0, 1, 2]).centre[0]
    single = type(sheaf)(
        **{
            name: value.float() if isinstance(value, torch.Tensor) else value
            for name, value in vars(sheaf).items()
        }
    )
    scores = EnergyScorer(single, x.float()).score(batch)
    assert scores.dtype == torch.float32
    exact = EnergyScorer(sheaf, x).score(batch)
    torch.testing.assert_close(scores.double(), exact, rtol=3e-5, atol=1e-5)
    assert scores[0].argmax() == 7


@pytest.mark.parametrize("kind", ["identity", "diagonal, complex pair", "dense, pair"])
def test_plain_torch_gives_the_same_scores(kind):
    sheaf = make_sheaf(kind)
    dtype = torch.complex128 if sheaf.dtype.is_complex else torch.float64
    x = torch.randn(30, 2, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for batch in draw_batches(sheaf, x):
        with use_backend("torch"):
            plain = EnergyScorer(sheaf, x).score(batch)
        torch.testing.assert_close(EnergyScorer(sheaf, x).score(batch), plain)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_features_times_coefficients_are_the_quadratic(kind):
    """The energy in all its forms: by the matrix, as one product, from differences."""
    sheaf = make_sheaf(kind)
    dtype = sheaf.dtype or torch.float64
    x = torch.randn(6, 2, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for structure, slots in (("2p", [0, 1, 6]), ("2i", [3, 0, 5, 2])):
        energy = energy_of(sheaf, x, structure, slots)
        precision = energy.precision()[0]
        for section in (0, 1):
            gap = x[:, section] - energy.centre[0, section]
            want = ((gap.conj() @ precision) * gap).sum(1).real + energy.constant[0, section]
            features, shared = energy.features(real_rows(x[:, section])), energy.shared()
            product = energy.coefficients(section)
            if shared is not None:
                product = torch.cat([shared[0][shared[1]], product], dim=1)
            torch.testing.assert_close((product @ features)[0], want)
            rows = torch.zeros(6, dtype=torch.long)
            torch.testing.assert_close(energy.at(rows, x[:, section], section), want)
            assert float(energy.size(section, squares(x[:, section]).sum(1).amax())) > 0


def test_squares_and_double():
    z = torch.tensor([3 - 4j, 0.5j], dtype=torch.complex64)
    assert squares(z).tolist() == [25.0, 0.25]
    assert double(z).dtype == torch.complex128
    assert double(z.real).dtype == torch.float64
