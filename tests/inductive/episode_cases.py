"""Small graphs and models for the tests of episodes."""

import torch

from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.kge import build_model
from sheafprop.nn import RelationPrototypes

MODELS = (
    "rotate",
    "su2e",
    "transe",
    "pairre",
    "lineare",
    "se",
    "transr",
    "stranse",
    "transh",
    "um",
)


def random_triples(num_nodes=9, num_relations=3, count=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    columns = (num_nodes, num_relations, num_nodes)
    triples = torch.stack([torch.randint(n, (count,), generator=generator) for n in columns], 1)
    return torch.unique(triples, dim=0)


def small_model(kind="rotate", dtype=torch.float64, num_nodes=9, triples=None, **settings):
    triples = random_triples() if triples is None else triples
    kge = build_model(kind, num_nodes=num_nodes, num_relations=3, hidden_channels=4)
    kge.reset_parameters(1)
    kge = kge.to(dtype)
    head, relation, tail = triples.unbind(1)
    x = kge.entity_vectors().detach()
    mean = RelationPrototypes.from_triples(x, torch.stack([head, tail]), relation, 3).mean
    chosen = EpisodeSettings(**({"num_steps": 3, "num_random": 3} | settings))
    model = EpisodeModel(kge, mean, chosen, seed=2).to(dtype)
    with torch.no_grad():  # no parameter may hide behind a zero
        generator = torch.Generator().manual_seed(5)
        for parameter in model.trained_parameters().values():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.2 * noise.to(parameter)
    return model
