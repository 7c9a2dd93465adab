import pytest
import torch

from sheafprop.inductive import baselines as module
from sheafprop.inductive.baselines import (
    FILTERED_PROXIMITY,
    MEAN,
    PROXIMITY,
    baselines,
    proximity_is_cheap,
)
from sheafprop.inductive.proximity_scorer import LogProximity
from tests.inductive.test_inductive_propagation import trained
from tests.toy import toy_data


def names(found):
    return [name.partition(", ")[2] or name for name in found]


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_which_baselines_there_are(mode):
    data = toy_data(mode)
    near = LogProximity(data.inference.triples, data.inference.num_nodes)
    mean = [f"{MEAN}"] if mode == "semi-inductive" else []
    found = baselines(trained("rotate", data), data, near)
    assert [n.rpartition(", ")[2] for n in names(found)] == [
        "random vectors (no propagation)",
        *[m.rpartition(", ")[2] for m in mean],
        "edge-type heuristic",
        PROXIMITY,
        FILTERED_PROXIMITY,
    ]
    assert PROXIMITY not in baselines(trained("rotate", data), data, None)


def test_the_mean_of_messages_is_that_of_known_neighbours():
    data = toy_data("semi-inductive")
    model = trained("rotate", data)
    found = baselines(model, data, None)
    (scorer,) = (one for name, one in found.items() if MEAN in name)
    known = data.boundary_mask
    x = model.entity_vectors().detach()[data.boundary_source.clamp_min(0)]
    x = torch.where(known.unsqueeze(1), x, 0)
    turn = torch.polar(torch.ones_like(model.rel_emb.weight), model.rel_emb.weight).detach()
    total = torch.zeros_like(x)
    for head, relation, tail in data.inference.triples.tolist():
        total[tail] += x[head] * turn[relation]
        total[head] += x[tail] * turn[relation].conj()
    length = torch.linalg.vector_norm(total, dim=1, keepdim=True)
    expected = torch.where(known.unsqueeze(1), x, total / length.clamp_min(1e-12))
    head, relation = torch.arange(4), torch.zeros(4, dtype=torch.long)
    torch.testing.assert_close(
        scorer.score_tails(head, relation),
        model.score_tails(expected, head, relation),
        rtol=1e-4,
        atol=1e-5,
    )


def test_large_graphs_are_left_out_unless_asked_for(monkeypatch):
    data = toy_data("fully-inductive")
    assert proximity_is_cheap(data)
    monkeypatch.setattr(module, "_MOST_PRODUCTS", 1.0)
    assert not proximity_is_cheap(data)
