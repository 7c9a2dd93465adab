import torch

from sheafprop.inductive.episode_scorer import EpisodeScorer, WithVectors
from tests.inductive.episode_cases import random_triples, small_model


def test_scores_are_those_of_the_model_from_sections_by_label():
    triples, model = random_triples(), small_model("pairre", counts=True)
    labels = [f"entity {i}" for i in range(9)]
    scorer = EpisodeScorer(model, triples, labels, seed=3)
    with torch.no_grad():
        graph = model.diffuse(triples, 9, model.draw_sections(labels, 3))
    entity, relation = torch.tensor([1, 7]), torch.tensor([2, 0])
    tails, heads = scorer.score_tails(entity, relation), scorer.score_heads(relation, entity)
    with torch.no_grad():
        assert torch.equal(tails, model.score(graph, entity, relation, "tail"))
        assert torch.equal(heads, model.score(graph, entity, relation, "head"))
    assert not tails.requires_grad
    assert not torch.equal(tails, heads)


def test_an_entity_scores_the_same_whatever_its_number():
    triples, model = random_triples(), small_model("rotate")
    labels = [f"entity {i}" for i in range(9)]
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    place = order.argsort()
    moved = torch.stack([place[triples[:, 0]], triples[:, 1], place[triples[:, 2]]], dim=1)
    one = EpisodeScorer(model, triples, labels)
    other = EpisodeScorer(model, moved, [labels[i] for i in order.tolist()])
    entity, relation = torch.tensor([4]), torch.tensor([1])
    found = one.score_tails(entity, relation)[0]
    again = other.score_tails(place[entity], relation)[0]
    torch.testing.assert_close(again, found[order])


def test_vectors_beside_spread_as_wide_as_asked():
    triples, model = random_triples(), small_model("rotate")
    scorer = EpisodeScorer(model, triples, [str(i) for i in range(9)])

    class Vectors:
        def score_tails(self, head, relation):
            return torch.sin(head[:, None] * 3.0 + torch.arange(9.0) ** 2 + relation[:, None])

        def score_heads(self, relation, tail):
            return 5 * self.score_tails(tail, relation)

    both = WithVectors(scorer, Vectors(), 0.5, triples)
    head, relation = triples[:, 0], triples[:, 1]
    own = scorer.score_tails(head, relation).double()
    other = Vectors().score_tails(head, relation).double()
    weight = 0.5 * own.std(1).mean() / other.std(1).mean()
    found = both.score_tails(head, relation)
    torch.testing.assert_close(found, own + weight * other, rtol=1e-5, atol=1e-6)
    own, other = scorer.score_heads(relation, head), Vectors().score_heads(relation, head)
    found = both.score_heads(relation, head)
    torch.testing.assert_close(found, own + weight * other, rtol=1e-5, atol=1e-6)
