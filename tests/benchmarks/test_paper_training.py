import pytest
import torch
from benchmarks import paper_training
from benchmarks.paper_training import (
    PairBatches,
    ProjectedTransR,
    clamp_rows,
    start_maps_at_random_,
    train_on_pairs,
)
from benchmarks.training import rank_triples

from sheafprop.kge import build_model
from sheafprop.kge.transr import TransR
from sheafprop.ranking import TripleFilter
from tests.toy import toy_data

TRIPLES = torch.tensor([[0, 0, 1], [0, 0, 3], [2, 1, 3], [0, 1, 2], [0, 0, 2], [3, 1, 0]])


def projected(**changes):
    arguments = {"num_nodes": 7, "num_relations": 3, "hidden_channels": 5, "relation_channels": 4}
    model = ProjectedTransR(**(arguments | changes))
    with torch.no_grad():  # far enough from the unit ball that clamping matters
        model.rel_map.mul_(1.7)
    return model


def test_a_pair_is_met_once_with_the_mean_over_its_tails():
    batches = PairBatches(TRIPLES, 4, 3, seed=0)
    found = {}
    for pairs, targets in batches:
        assert len(pairs) <= 3
        found |= {
            tuple(pair.tolist()): row.tolist() for pair, row in zip(pairs, targets, strict=True)
        }
    third = pytest.approx(1 / 3)
    assert found == {
        (0, 0): [0, third, third, third],
        (0, 1): [0, 0, 1, 0],
        (2, 1): [0, 0, 0, 1],
        (3, 1): [1, 0, 0, 0],
    }


def test_triples_are_met_one_by_one_if_pairs_are_not_merged():
    batches = list(PairBatches(TRIPLES, 4, 4, seed=0, merged=False))
    assert [len(pairs) for pairs, _ in batches] == [4, 2]
    pairs = torch.cat([pairs for pairs, _ in batches])
    tails = torch.cat([targets for _, targets in batches]).argmax(1)
    assert sorted(torch.column_stack([pairs, tails]).tolist()) == sorted(TRIPLES.tolist())


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("side", ["tail", "head"])
def test_projected_entities_are_clamped_on_both_sides(side, squared):
    model = projected(squared=squared)
    x, triples = model.entity_vectors(), torch.tensor([[0, 1, 2], [3, 0, 1], [4, 1, 6]])
    head, relation, tail = triples.T

    def distance(one, other):
        a, b = (clamp_rows(torch.einsum("bkd,bd->bk", model.rel_map[relation], x[i]))
                for i in (one, other))  # fmt: skip
        length = (a + model.rel_emb(relation) - b).norm(dim=1)
        return length.square() if squared else length

    scores = model.score_tails(x, head, relation)
    if side == "head":
        scores = model.score_heads(x, relation, tail)
    true = tail if side == "tail" else head
    assert torch.einsum("bkd,nd->bnk", model.rel_map, x).norm(dim=2).max() > 1.1
    assert torch.allclose(scores[torch.arange(3), true], -distance(head, tail), atol=1e-5)
    assert torch.allclose(model.score_triples(x, head, relation, tail), -distance(head, tail))


def test_gradients_of_projected_scores_are_those_of_the_plain_formula():
    model = projected().double()
    head, relation = torch.tensor([0, 3, 4]), torch.tensor([1, 0, 1])
    weights = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (model.score_tails(model.entity_vectors(), head, relation) * weights).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    x, maps = model.entity_vectors(), model.rel_map[relation]
    query = clamp_rows(torch.einsum("bkd,bd->bk", maps, x[head])) + model.rel_emb(relation)
    candidates = clamp_rows(torch.einsum("bkd,nd->bnk", maps, x))
    (-(query.unsqueeze(1) - candidates).norm(dim=2) * weights).sum().backward()
    for name, p in model.named_parameters():
        assert torch.allclose(found[name], p.grad, atol=1e-9), name


def test_random_maps_are_small_and_seeded():
    one, other = (TransR(5, 3, 40, relation_channels=20) for _ in range(2))
    start_maps_at_random_(one, 1)
    start_maps_at_random_(other, 1)
    assert torch.equal(one.rel_map, other.rel_map)
    bound = (6 / (20 * (40 + 3))) ** 0.5
    assert 0.9 * bound < one.rel_map.abs().max() <= bound


def train(monkeypatch, hits, **changes):
    """Trains TransE with given Hits@10; returns its notes and weights at every check."""
    data, seen, values = toy_data("fully-inductive"), [], iter(hits)
    model = build_model("transe", num_nodes=data.train.num_nodes,
                        num_relations=data.num_relations, hidden_channels=6)  # fmt: skip

    class Result:
        def metrics(self, protocol):
            return {"hits@10": next(values)}

    def rank(model, *_):
        seen.append(model.node_emb.weight.clone())
        return Result()

    monkeypatch.setattr(paper_training, "rank_triples", rank)
    triples = data.train.triples
    settings = {"batch_size": 8, "lr": 0.1, "label_smoothing": 0.1, "max_epochs": 12}
    settings |= {"check_every": 2, "seed": 0} | changes
    notes = train_on_pairs(model, triples, triples[:5], **settings)
    return model, notes, seen


def test_training_stops_after_two_checks_without_growth_and_takes_the_best(monkeypatch):
    # Growth below the relative delta of 0.002 does not count.
    model, notes, seen = train(monkeypatch, [0.3, 0.5, 0.5005, 0.4])
    assert notes == {"epochs": 8, "best_epoch": 4, "watched_hits@10": 0.5}
    assert torch.equal(model.node_emb.weight, seen[1])


def test_training_that_never_stops_keeps_its_last_weights(monkeypatch):
    model, notes, seen = train(monkeypatch, [0.3, 0.5, 0.4, 0.6, 0.7, 0.6])
    assert (notes["epochs"], notes["best_epoch"]) == (12, 10)
    assert torch.equal(model.node_emb.weight, seen[-1])


@pytest.mark.parametrize("merged", [False, True])
def test_training_learns(monkeypatch, merged):
    data = toy_data("fully-inductive")
    model = build_model("transe", num_nodes=data.train.num_nodes,
                        num_relations=data.num_relations, hidden_channels=16)  # fmt: skip
    triples = data.train.triples
    start = rank_triples(model, triples, TripleFilter(triples, model.num_nodes, data.num_relations))
    notes = train_on_pairs(
        model, triples, triples, batch_size=16, lr=0.05, label_smoothing=0.1, max_epochs=60,
        check_every=30, seed=0, pairs=merged,
    )  # fmt: skip
    assert notes["watched_hits@10"] > start.metrics("full")["hits@10"] + 0.1


@pytest.mark.parametrize("kind", ["unit_relations", "clamped_relations"])
def test_translations_are_kept_to_their_length(monkeypatch, kind):
    model, _, _ = train(monkeypatch, [0.1, 0.1, 0.1], **{kind: True})
    length = model.rel_emb.weight.norm(dim=1)
    assert length.max() <= 1 + 1e-6
    assert (kind == "clamped_relations") or length.min() >= 1 - 1e-6
