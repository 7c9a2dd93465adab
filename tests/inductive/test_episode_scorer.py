import pytest
import torch

from sheafprop.inductive.episode_model import EpisodeSettings
from sheafprop.inductive.episode_scorer import (
    EpisodeScorer,
    WithVectors,
    episode_loss,
    score_by_episodes,
)
from sheafprop.inductive.feature_map import Anchors
from sheafprop.inductive.inductive_propagation import InductivePropagation, fit_features
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.ranking import TripleFilter
from sheafprop.training.episode_training import train_episodes
from tests.inductive.episode_cases import MODELS, random_triples, small_model
from tests.inductive.test_inductive_propagation import trained, with_features


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


def ranked_triples(monkeypatch, model, triples, num_nodes=9, anchors=None, seed=0):
    """The observed and the ranked triples of one step, each as a set."""
    seen, ranked = [], []
    diffuse, score = type(model).diffuse, type(model).score

    def spy_diffuse(self, observed, *rest):
        seen.append(observed)
        return diffuse(self, observed, *rest)

    def spy_score(self, graph, entity, relation, side):
        ranked.append((side, entity, relation))
        return score(self, graph, entity, relation, side)

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "diffuse", spy_diffuse)
        patch.setattr(type(model), "score", spy_score)
        known = TripleFilter(triples, num_nodes, 3)
        generator = torch.Generator().manual_seed(seed)
        loss = episode_loss(model, triples, num_nodes, known, generator, anchors)
    assert bool(torch.isfinite(loss))
    (_, head, relation), (_, tail, again) = ranked
    assert [side for side, *_ in ranked] == ["tail", "head"]
    assert torch.equal(relation, again)
    queries = torch.stack([head, relation, tail], dim=1)
    return set(map(tuple, seen[0].tolist())), set(map(tuple, queries.tolist()))


def sparse_triples(num_nodes=24, count=20):
    """Triples of which many are the only one of an entity."""
    return random_triples(num_nodes, 3, count, seed=2)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("isolated", [False, True])
def test_hidden_triples_are_ranked_and_take_no_part_in_the_diffusion(monkeypatch, share, isolated):
    triples = sparse_triples()
    model = small_model(
        "rotate", triples=triples, num_nodes=24, hidden_share=share, rank_isolated=isolated
    )
    every, differ = set(map(tuple, triples.tolist())), 0
    for seed in range(5):
        observed, ranked = ranked_triples(monkeypatch, model, triples, 24, seed=seed)
        hidden = every - observed
        assert len(hidden) == round(share * len(triples))
        known = {end for h, _, t in observed for end in (h, t)}
        connected = {(h, r, t) for h, r, t in hidden if {h, t} <= known}
        assert ranked == (hidden if isolated or not connected else connected)
        differ += connected != hidden
    assert differ


def test_features_make_up_for_observed_triples(monkeypatch):
    triples = sparse_triples()
    model = small_model("rotate", triples=triples, num_nodes=24, hidden_share=0.5)
    observed, without = ranked_triples(monkeypatch, model, triples, 24)
    nodes = torch.arange(0, 24, 2)
    target = torch.ones(len(nodes), 4, dtype=torch.complex128)
    anchors = Anchors(nodes, target, torch.ones(len(nodes)))
    again, ranked = ranked_triples(monkeypatch, model, triples, 24, anchors)
    assert again == observed
    known = {end for h, _, t in observed for end in (h, t)} | set(nodes.tolist())
    hidden = set(map(tuple, triples.tolist())) - observed
    assert ranked == {(h, r, t) for h, r, t in hidden if {h, t} <= known}
    assert without < ranked < hidden


def test_a_step_ranks_as_many_triples_as_it_may(monkeypatch):
    """Those that are not ranked are left out before the batch is cut."""
    triples = sparse_triples()
    model = small_model("rotate", triples=triples, num_nodes=24, hidden_share=0.5)
    _, every = ranked_triples(monkeypatch, model, triples, 24)
    for size in range(1, len(every) + 2):
        small = small_model(
            "rotate", triples=triples, num_nodes=24, hidden_share=0.5, batch_size=size
        )
        _, ranked = ranked_triples(monkeypatch, small, triples, 24)
        assert ranked <= every
        assert len(ranked) == min(size, len(every))


def test_hidden_triples_are_ranked_where_all_their_entities_are_isolated(monkeypatch):
    triples = torch.tensor([[0, 0, 1], [2, 1, 3], [4, 2, 5], [6, 0, 7]])
    model = small_model("rotate", triples=triples, hidden_share=0.5)
    observed, ranked = ranked_triples(monkeypatch, model, triples)
    assert len(ranked) == 2
    assert not ranked & observed


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


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
@pytest.mark.parametrize("share", [0.0, 0.7])
def test_episodes_stand_beside_the_vectors_of_known_entities(mode, share):
    """With the seed, the features and the share that are given."""
    data = with_features(mode)
    model = trained("rotate", data)
    settings = EpisodeSettings(num_steps=2, num_random=2, vector_share=share)
    _, anchors = fit_features(data, model.entity_vectors(), model.sheaf())
    given = model, data.train.triples, settings
    episodes, _ = train_episodes(*given, anchors=anchors)
    propagation = InductivePropagation(model, data, PropagationSettings(num_random=2))
    vectors, mapped = propagation.scorer(), propagation.feature_map
    labels, observed = data.inference.entities.labels, data.inference.triples
    drawn = EpisodeScorer(episodes, observed, labels, 3, mapped.anchors(data.features, labels))
    expected = drawn
    if mode == "semi-inductive" and share:
        expected = WithVectors(drawn, vectors, share, observed)
    ids, relation = torch.arange(data.inference.num_nodes), torch.tensor(1)
    queries = ids, relation.expand(len(ids))

    def rows(scorer):
        return scorer.score_tails(*queries)

    found = score_by_episodes(episodes, data, vectors, seed=3, feature_map=mapped)
    assert torch.equal(rows(found), rows(expected))
    for changed in (dict(seed=3), dict(feature_map=mapped)):
        assert not torch.equal(
            rows(score_by_episodes(episodes, data, vectors, **changed)), rows(found)
        )
