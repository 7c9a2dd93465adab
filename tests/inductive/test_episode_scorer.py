import pytest
import torch

from sheafprop.inductive.episode_scorer import EpisodeScorer, WithVectors, episode_loss
from sheafprop.ranking import TripleFilter
from tests.inductive.episode_cases import MODELS, random_triples, small_model


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


def value_of(model, triples, seed=0):
    with torch.no_grad():
        return float(loss_of(model, triples, seed=seed))


def loss_of(model, triples, num_nodes=9, seed=0):
    known = TripleFilter(triples, num_nodes, 3)
    return episode_loss(model, triples, num_nodes, known, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_finite_differences(kind):
    triples = random_triples()
    model = small_model(kind, counts=True, own_maps=True, times=(1, 3))
    loss_of(model, triples).backward()
    generator = torch.Generator().manual_seed(3)
    step = 1e-6
    for name, parameter in model.trained_parameters().items():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        direction /= direction.norm()
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step * direction
                values.append(value_of(model, triples))
                parameter -= sign * step * direction
        found = float((parameter.grad * direction).sum())
        expected = (values[0] - values[1]) / (2 * step)
        assert found == pytest.approx(expected, rel=2e-5, abs=2e-7), name


def test_hidden_triples_take_no_part_in_the_diffusion(monkeypatch):
    triples, model = random_triples(), small_model("rotate", hidden_share=0.4)
    seen, ranked = [], []
    diffuse, score = type(model).diffuse, type(model).score

    def spy_diffuse(self, observed, *rest):
        seen.append(observed)
        return diffuse(self, observed, *rest)

    def spy_score(self, graph, entity, relation, side):
        ranked.append((side, entity, relation))
        return score(self, graph, entity, relation, side)

    monkeypatch.setattr(type(model), "diffuse", spy_diffuse)
    monkeypatch.setattr(type(model), "score", spy_score)
    loss_of(model, triples)
    observed = {tuple(row) for row in seen[0].tolist()}
    hidden = {tuple(row) for row in triples.tolist()} - observed
    assert len(hidden) == round(0.4 * len(triples))
    by_side = {side: (entity, relation) for side, entity, relation in ranked}
    pairs = set(zip(*(t.tolist() for t in by_side["tail"]), strict=True))
    assert pairs == {(h, r) for h, r, _ in hidden}
    pairs = set(zip(*(t.tolist() for t in by_side["head"]), strict=True))
    assert pairs == {(t, r) for _, r, t in hidden}


def test_a_hidden_triple_that_is_observed_too_would_change_the_loss():
    """The guard above is worth something: what is observed decides."""
    triples, model = random_triples(), small_model("rotate", hidden_share=0.4)
    plain = value_of(model, triples)
    diffuse = type(model).diffuse
    leaky = type("Leaky", (type(model),), {})
    leaky.diffuse = lambda self, observed, *rest: diffuse(self, triples, *rest)
    model.__class__ = leaky
    assert value_of(model, triples) != plain


def test_other_known_answers_are_no_mistakes():
    """With every entity a known tail, nothing is left to be confused with."""
    tails = torch.arange(9)
    triples = torch.stack([torch.zeros_like(tails), torch.zeros_like(tails), tails], dim=1)
    model = small_model("rotate", triples=triples)
    known = TripleFilter(triples, 9, 3)
    captured = []
    original = torch.nn.functional.cross_entropy

    def spy(scores, answer):
        captured.append(scores)
        return original(scores, answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "cross_entropy", spy)
        episode_loss(model, triples, 9, known, torch.Generator().manual_seed(0))
    tail_scores = captured[0]
    assert torch.equal(torch.isfinite(tail_scores).sum(1), torch.ones(len(tail_scores)).long())


@pytest.mark.parametrize("count", [1, 2])
def test_very_few_triples_have_a_loss(count):
    triples = random_triples()[:count]
    model = small_model("transe", triples=triples)
    loss = loss_of(model, triples)
    loss.backward()
    assert bool(torch.isfinite(loss))
    for name, parameter in model.trained_parameters().items():
        assert parameter.grad is None or bool(torch.isfinite(parameter.grad).all()), name


def test_depends_on_the_generator_alone():
    triples, model = random_triples(), small_model("rotate")
    assert value_of(model, triples) == value_of(model, triples)
    assert value_of(model, triples, seed=1) != value_of(model, triples)


def test_an_entity_with_nothing_but_loops_of_close_maps_has_gradients():
    """The square of the inverse of its block is too large for single precision."""
    triples = torch.cat([random_triples(), torch.tensor([[8, 2, 8]])])
    triples = triples[((triples[:, 0] != 8) & (triples[:, 2] != 8)) | (triples[:, 1] == 2)]
    triples = torch.cat([triples[(triples[:, 0] != 8) & (triples[:, 2] != 8)], triples[-1:]])
    model = small_model("rotate", torch.float32, triples=triples)
    with torch.no_grad():
        model.maps.rel_emb.weight[2, :2] = torch.tensor([1e-11, -3e-12])
    found = []
    for seed in range(12):  # in most of them the loop is not hidden
        model.zero_grad()
        loss_of(model, triples, seed=seed).backward()
        found += [
            name
            for name, parameter in model.trained_parameters().items()
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
        ]
    assert found == []
