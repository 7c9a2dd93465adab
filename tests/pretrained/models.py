"""Small trained-like models with labels and facts."""

import torch

from sheafprop.data import KnowledgeGraph
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import build_model
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from tests.toy import ring

SETTINGS = PropagationSettings(iterations=5, num_random=2)


def stored_model(name, *, dtype=torch.float64, width=4, settings=SETTINGS, **config):
    graph = KnowledgeGraph.from_labels([t for t in ring("a", 12)])
    model = build_model(
        name,
        num_nodes=graph.num_nodes,
        num_relations=graph.num_relations,
        hidden_channels=width,
        **config,
    )
    model.reset_parameters(3)
    return StoredModel.from_training(
        model.to(dtype),
        graph.entities,
        graph.relations,
        graph.triples,
        settings=settings.to_dict() if settings else {},
    )


def sheaf_model(name, **arguments):
    return SheafModel(stored_model(name, **arguments))


#: Free entities that meet each other, parallel and repeated facts, both directions, a loop.
FACTS = [
    ("n0", "next", "a1"),
    ("a5", "far", "n0"),
    ("n0", "skip", "n1"),
    ("n1", "next", "a2"),
    ("n1", "skip", "a2"),
    ("n1", "skip", "a2"),
    ("n1", "far", "n1"),
    ("a3", "next", "n2"),
    ("a3", "skip", "n2"),
    ("n2", "far", "a7"),
    ("a1", "far", "a9"),
]
#: Two new entities that reach nothing known.
ADRIFT = [("m0", "next", "m1"), ("m1", "far", "m0")]


def close(a, b, tol=1e-9):
    a, b = (v.detach() if isinstance(v, torch.Tensor) else torch.tensor(list(v)) for v in (a, b))
    assert torch.allclose(a, b.to(a.dtype), atol=tol, rtol=tol)
