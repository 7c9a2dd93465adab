"""Another order of triples, and so of entities and relations, changes scores by rounding only."""

import random

import pandas as pd
import pytest
import torch

from sheafprop.data import FeatureTable, assemble
from sheafprop.data.inductive_data import add_features
from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import ProximitySettings
from sheafprop.inductive.rank_completion import rank_completion
from sheafprop.kge import KGE_REGISTRY
from sheafprop.nn import RelationPrototypes
from sheafprop.ranking import evaluate
from tests.inductive.test_inductive_propagation import trained
from tests.toy import SIZE, STEPS, parts

SETTINGS = PropagationSettings(iterations=4, num_random=2, relation_weights=True)
FEATURES = pd.DataFrame({"size": {f"{p}{i}": float(i * i % 11) for p in "ab" for i in range(SIZE)}})


def make_data(mode, seed=None):
    """The ring with features, its triples in a random order if there is a seed."""
    given = parts(mode)
    if seed is not None:
        random.Random(seed).shuffle(order := list(given.values()))
        for triples in order:
            random.Random(seed).shuffle(triples)
    return add_features(assemble("ring", mode, **given), FeatureTable.of(FEATURES))


def labels_of(data):
    return data.train.entities.labels, data.train.relations.labels


def carry(model, labels, other, other_labels):
    """Gives a model the parameters of another, rows by their labels."""
    entities, relations = (
        torch.tensor([old.index(label) for label in new])
        for old, new in zip(labels, other_labels, strict=True)
    )
    # Rows for each side of each relation have those of one side after those of the other.
    sides = torch.cat([relations, relations + len(relations)])
    places = {len(place): place for place in (entities, relations, sides)}
    assert len(places) == 3
    state = other.state_dict()
    for name, value in model.state_dict().items():
        found = state[name]
        for dimension, size in enumerate(value.shape[:2]):
            if size in places:
                found = found.index_select(dimension, places[size])
        value.copy_(found)
    return model


def episodes_of(model, data, seed=None):
    x, train = model.entity_vectors().detach(), data.train
    found = RelationPrototypes.from_triples(
        x, train.edge_index, train.edge_type, train.num_relations
    )
    made = EpisodeModel(
        model, found.mean, EpisodeSettings(counts=True, walk_steps=1), gamma=0.5
    ).double()
    if seed is not None:
        g = torch.Generator().manual_seed(seed)
        for parameter in made.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=g, dtype=torch.double)
    return made


def scores(model, data, episodes):
    """Scores of the test triples' ends for all entities, by method, in the order of labels."""
    entities, relations = data.inference.entities.labels, labels_of(data)[1]
    test = sorted(data.test.tolist(), key=lambda t: (entities[t[0]], relations[t[1]]))
    head, relation, tail = torch.tensor(test).T
    columns = torch.tensor(sorted(range(len(entities)), key=entities.__getitem__))
    found = []

    def watch(score_tails, score_heads, *given, **named):
        both = score_tails(head, relation), score_heads(relation, tail)
        found.append(torch.cat(both)[:, columns].double())
        return evaluate(score_tails, score_heads, *given, **named)

    result = rank_completion(
        model,
        data,
        SETTINGS,
        episodes=episodes,
        proximity=ProximitySettings(peers=0.5),
        protocols=("full",),
        rank=watch,
    )
    return dict(zip((row["method"] for row in result.rows), found, strict=False))


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "semi-inductive") for name in sorted(KGE_REGISTRY)), ("se", "fully-inductive")],
)
@torch.no_grad()
def test_scores_do_not_depend_on_the_order(name, mode):
    data, other = make_data(mode), make_data(mode, seed=3)
    assert set(labels_of(data)[1]) == set(STEPS)
    assert all(a != b for a, b in zip(labels_of(data), labels_of(other), strict=True))
    model = trained(name, data).double()
    again = carry(trained(name, other).double(), labels_of(data), model, labels_of(other))
    episodes = episodes_of(model, data, seed=1)
    want = scores(model, data, episodes)
    carried = carry(episodes_of(again, other), labels_of(data), episodes, labels_of(other))
    got = scores(again, other, carried)
    assert len(want) >= 9
    assert want.keys() == got.keys()
    for method, expected in want.items():
        finite = expected.isfinite()
        assert torch.equal(finite, got[method].isfinite()), method
        # Vectors are exact to 1e-15 of their length, the features' ridge regression has a condition
        # of 1e4 at most. Proximity is held in single precision, of which it adds 20 steps.
        bound = 2e-6 if "proximity" in method else 1e-10
        error = float((got[method][finite] - expected[finite]).abs().max())
        assert error <= bound * float(expected[finite].abs().max()), method
