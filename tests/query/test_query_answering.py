import numpy as np
import pytest
import torch

from sheafprop.kge import KGE_REGISTRY, build_model
from sheafprop.query import STRUCTURES, QueryAnswering
from tests.query.brute_force import best_scores
from tests.query.trees import as_batch, fill, random_shape
from tests.sheaf_cases import SHEAF_KINDS, make_sheaf

NAMES = [name for name, shape in STRUCTURES.items() if not shape.has("not")]
MODELS = [
    *((name, {}) for name in KGE_REGISTRY),
    ("transr", {"relation_channels": 2}),
    ("transr", {"relation_channels": 6}),
]


def model_and_vectors(name, more, sections=2, dtype=torch.float64):
    model = build_model(name, num_nodes=8, num_relations=3, hidden_channels=4, **more)
    model.reset_parameters(seed=1)
    model = model.double()
    x = model.draw_entities([f"e{i}" for i in range(8)], 0, sections)
    return model.sheaf(), x.to(torch.complex128 if x.is_complex() else dtype)


def check(sheaf, x, shape, seed, weighted):
    rng = np.random.default_rng(seed)
    tree = fill(shape, rng, x.shape[0], sheaf.num_relations, weighted)
    got = QueryAnswering(sheaf, x).score(as_batch(tree, sheaf.num_relations))[0].numpy()
    want = best_scores(tree, sheaf, x.numpy())
    # Zero energies are only known to the root of the rounding error of the reference.
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-8, err_msg=str(tree))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("structure", NAMES)
@pytest.mark.parametrize(("name", "more"), MODELS)
def test_scores_are_the_minimum_over_the_whole_query_graph(name, more, structure, weighted):
    sheaf, x = model_and_vectors(name, more)
    for seed in range(3):
        check(sheaf, x, STRUCTURES[structure], seed, weighted)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_every_map_kind_and_deeper_trees(kind, weighted):
    sheaf = make_sheaf(kind)
    g = torch.Generator().manual_seed(0)
    complex_ = sheaf.dtype is not None and sheaf.dtype.is_complex
    x = torch.randn(7, 2, 3, generator=g, dtype=torch.complex128 if complex_ else torch.float64)
    for seed in range(12):
        rng = np.random.default_rng(100 + seed)
        check(sheaf, x, random_shape(rng, 5, union=seed % 3 == 0), seed, weighted)
