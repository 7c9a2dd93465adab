"""Models, vectors and batches of queries that several tests share."""

import numpy as np
import torch

from sheafprop.kge import KGE_REGISTRY, build_model
from sheafprop.query import STRUCTURES, EnergyScorer, QueryBatch
from tests.query.brute_force import best_scores
from tests.query.trees import as_batch, fill

NAMES = [name for name, shape in STRUCTURES.items() if not shape.has("not")]
MODELS = [
    *((name, {}) for name in KGE_REGISTRY),
    ("transr", {"relation_channels": 2}),
    ("transr", {"relation_channels": 6}),
]


def model_and_vectors(name, more, sections=2, dtype=torch.float64):
    """The sheaf of a model in double precision, and vectors of 8 entities."""
    model = build_model(name, num_nodes=8, num_relations=3, hidden_channels=4, **more)
    model.reset_parameters(seed=1)
    model = model.double()
    x = model.draw_entities([f"e{i}" for i in range(8)], 0, sections)
    return model.sheaf(), x.to(torch.complex128 if x.is_complex() else dtype)


def check_scores(sheaf, x, shape, seed, weighted):
    """Compares the scores of a random query with those of brute force."""
    rng = np.random.default_rng(seed)
    tree = fill(shape, rng, x.shape[0], sheaf.num_relations, weighted)
    got = EnergyScorer(sheaf, x).score(as_batch(tree, sheaf.num_relations))[0].numpy()
    want = best_scores(tree, sheaf, x.numpy())
    # Zero energies are only known to the root of the rounding error of the reference.
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-8, err_msg=str(tree))


def energy_of(sheaf, x, structure, slots, weight=None):
    """The energy at the target of one query of a structure."""
    scorer = EnergyScorer(sheaf, x)
    batch = QueryBatch.of(structure, torch.tensor([slots]), weight)
    (conjunction,) = batch.conjunctions()
    return scorer.elimination.run(conjunction).energy


def draw_batches(sheaf, x, seed=0):
    """Batches of 40 queries of some structures; several share their relations."""
    rng = np.random.default_rng(seed)
    for name in ("1p", "2p", "pi", "up"):
        shape = STRUCTURES[name]
        slots = [
            rng.integers(x.shape[0] if kind == "entity" else 2, size=40)
            for kind in shape.slot_kinds
        ]
        yield QueryBatch(shape, torch.from_numpy(np.stack(slots, axis=1)))
