import numpy as np
import pytest
import torch

from sheafprop.query import STRUCTURES, EnergyScorer
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf
from tests.query.brute_force import best_scores, conjunctions, minimal_energies
from tests.query.cases import MODELS, NAMES, check_scores, model_and_vectors
from tests.query.trees import as_batch, fill, random_shape
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_sheaf


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("structure", NAMES)
@pytest.mark.parametrize(("name", "more"), MODELS)
def test_scores_are_the_minimum_over_the_whole_query_graph(name, more, structure, weighted):
    sheaf, x = model_and_vectors(name, more)
    for seed in range(3):
        check_scores(sheaf, x, STRUCTURES[structure], seed, weighted)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_every_map_kind_and_deeper_trees(kind, weighted):
    sheaf = make_sheaf(kind)
    g = torch.Generator().manual_seed(0)
    complex_ = sheaf.dtype is not None and sheaf.dtype.is_complex
    x = torch.randn(7, 2, WIDTH, generator=g, dtype=torch.complex128 if complex_ else torch.float64)
    for seed in range(12):
        rng = np.random.default_rng(100 + seed)
        check_scores(sheaf, x, random_shape(rng, 5, union=seed % 3 == 0), seed, weighted)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_energies_are_split_by_edge(kind):
    """The parts add up to the energy, and are those of the brute-force minimiser."""
    sheaf = make_sheaf(kind)
    complex_ = sheaf.dtype is not None and sheaf.dtype.is_complex
    g = torch.Generator().manual_seed(3)
    x = torch.randn(7, 2, WIDTH, generator=g, dtype=torch.complex128 if complex_ else torch.float64)
    scorer = EnergyScorer(sheaf, x)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        tree = fill(random_shape(rng, 4, union=True), rng, 7, 4, weighted=True)
        batch = as_batch(tree, 4)
        found = scorer.answer(batch, 7, explain=True)[0]
        scores = scorer.score(batch)[0]
        assert [a.score for a in found] == sorted(scores.tolist(), reverse=True)
        for answer in found:
            assert answer.score == float(scores[answer.entity])
            assert sum(part for _, part in answer.edges) == pytest.approx(answer.energy)
            terms = conjunctions(tree)
            energies = [
                [minimal_energies(term, sheaf, x[:, i].numpy())[answer.entity] for i in (0, 1)]
                for term in terms
            ]
            best = min(energies, key=lambda pair: sum(np.sqrt(pair)))
            assert answer.energy == pytest.approx(sum(best), abs=1e-9)


@pytest.mark.parametrize("smallest", [1e-3, 1e-7])
@pytest.mark.parametrize("kind", [k for k in SHEAF_KINDS if not k.startswith("identity")])
def test_the_units_of_a_coordinate_change_no_score(kind, smallest):
    """Maps and vectors in other units have the energies of the brute force in the old ones."""
    sheaf, g = make_sheaf(kind), torch.Generator().manual_seed(5)
    x = torch.randn(7, 2, WIDTH, generator=g, dtype=torch.float64)
    x = x.to(torch.complex128) if sheaf.dtype.is_complex else x
    units = torch.tensor([1.0, smallest, smallest**0.5, 0.5], dtype=torch.float64)
    if isinstance(sheaf, DiagonalSheaf):
        sides = sheaf.diagonals("head"), sheaf.diagonals("tail")
        maps = [units.expand(4, WIDTH) if side is None else side * units for side in sides]
        scaled = DiagonalSheaf(*maps, sheaf.translation)
    else:
        maps = [sheaf.matrices(side, width=WIDTH) * units for side in ("head", "tail")]
        scaled = DenseSheaf(*maps, sheaf.translation)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        tree = fill(random_shape(rng, 4, union=False), rng, 7, sheaf.num_relations, weighted=True)
        batch = as_batch(tree, sheaf.num_relations)
        scorer = EnergyScorer(scaled, x / units)
        want = best_scores(tree, sheaf, x.numpy())
        np.testing.assert_allclose(scorer.score(batch)[0], want, atol=1e-6, err_msg=str(tree))
        for answer in scorer.answer(batch, 7, explain=True)[0]:
            assert sum(part for _, part in answer.edges) == pytest.approx(answer.energy, abs=1e-6)
            assert answer.energy == pytest.approx(
                sum(minimal_energies(tree, sheaf, x[:, i].numpy())[answer.entity] for i in (0, 1)),
                abs=1e-6,
            )
