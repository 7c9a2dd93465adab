import numpy as np
import pytest
import torch

from sheafprop.query import STRUCTURES, EnergyScorer
from tests.query.brute_force import conjunctions, minimal_energies
from tests.query.cases import MODELS, NAMES, check_scores, model_and_vectors
from tests.query.trees import as_batch, fill, random_shape
from tests.sheaf_cases import SHEAF_KINDS, make_sheaf


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
    x = torch.randn(7, 2, 3, generator=g, dtype=torch.complex128 if complex_ else torch.float64)
    for seed in range(12):
        rng = np.random.default_rng(100 + seed)
        check_scores(sheaf, x, random_shape(rng, 5, union=seed % 3 == 0), seed, weighted)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_energies_are_split_by_edge(kind):
    """The parts add up to the energy, and are those of the brute-force minimiser."""
    sheaf = make_sheaf(kind)
    complex_ = sheaf.dtype is not None and sheaf.dtype.is_complex
    g = torch.Generator().manual_seed(3)
    x = torch.randn(7, 2, 3, generator=g, dtype=torch.complex128 if complex_ else torch.float64)
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
