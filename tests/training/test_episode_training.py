import json

import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.feature_map import Anchors
from sheafprop.inductive.training_graph import split_training_triples
from sheafprop.kge import build_model
from sheafprop.training import episode_training
from sheafprop.training.episode_training import EpisodeTraining, train_episodes
from tests.inductive.episode_cases import random_triples, small_model

SETTINGS = EpisodeSettings(num_steps=6, batch_size=8, num_random=2)


def trained_model(kind="rotate", num_nodes=30):
    kge = build_model(kind, num_nodes=num_nodes, num_relations=3, hidden_channels=4)
    kge.reset_parameters(0)
    return kge


def graph(num_nodes=30, count=150):
    return random_triples(num_nodes, 3, count, seed=4)


def states(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


class Stopped(Exception):
    pass


def stop_at(monkeypatch, step):
    """Lets a step fail, once, as if the process had been killed in it."""
    original = EpisodeTraining.training_step
    left = [True]

    def training_step(self, batch, batch_idx):
        if self.global_step == step and left[0]:
            left[0] = False
            raise Stopped
        return original(self, batch, batch_idx)

    monkeypatch.setattr(EpisodeTraining, "training_step", training_step)


@pytest.mark.parametrize("step", [1, 4])
def test_an_interrupted_training_ends_as_an_unbroken_one(step, tmp_path, monkeypatch):
    kge, triples = trained_model(), graph()
    whole, _ = train_episodes(kge, triples, SETTINGS, seed=3)
    monkeypatch.setattr(episode_training, "_CHECKPOINT_SECONDS", 0.0)
    stop_at(monkeypatch, step)
    folder = tmp_path / "episodes"
    with pytest.raises(Stopped):
        train_episodes(kge, triples, SETTINGS, seed=3, folder=folder)
    assert (folder / "whole.ckpt").is_file()
    again, record = train_episodes(kge, triples, SETTINGS, seed=3, folder=folder)
    assert_equal(states(whole), states(again))
    assert record.num_steps == 6
    assert not folder.exists()


def test_an_interrupted_search_for_the_steps_goes_on(tmp_path, monkeypatch):
    kge, triples = trained_model(num_nodes=60), graph(60, 400)
    settings = EpisodeSettings(batch_size=8, num_random=2, max_steps=8)
    monkeypatch.setattr(episode_training, "_FIRST", 2)
    whole, expected = train_episodes(kge, triples, settings)
    assert [row[0] for row in expected.tried] == [2.0, 4.0, 8.0][: len(expected.tried)]
    best = max(expected.tried, key=lambda row: (row[1], -row[0]))
    assert expected.num_steps == best[0]
    monkeypatch.setattr(episode_training, "_CHECKPOINT_SECONDS", 0.0)
    stop_at(monkeypatch, 3)  # in the second of the numbers that are tried
    with pytest.raises(Stopped):
        train_episodes(kge, triples, settings, folder=tmp_path / "e")
    assert len(json.loads((tmp_path / "e/state.json").read_text())["tried"]) == 1
    again, record = train_episodes(kge, triples, settings, folder=tmp_path / "e")
    assert record.tried == expected.tried
    assert_equal(states(whole), states(again))


def test_the_number_of_steps_is_judged_on_entities_and_triples_that_trained_nothing(monkeypatch):
    kge, triples = trained_model(num_nodes=60), torch.unique(graph(60, 400), dim=0)
    parts = split_training_triples(triples, 60, seed=2)
    part, part_entities, apart, other_entities = parts
    assert not set(part_entities.tolist()) & set(other_entities.tolist())
    seen = {"prototypes": [], "trained": [], "observed": [], "judged": []}

    def watch(name, kind, place):
        original = getattr(episode_training, name)

        def watched(*arguments, **options):
            seen[kind].append(arguments[place])
            return original(*arguments, **options)

        monkeypatch.setattr(episode_training, name, watched)

    watch("_prototypes", "prototypes", 1)
    watch("EpisodeTraining", "trained", 1)
    watch("EpisodeScorer", "observed", 1)
    watch("evaluate", "judged", 2)
    monkeypatch.setattr(episode_training, "_FIRST", 2)
    settings = EpisodeSettings(batch_size=8, num_random=2, max_steps=2)
    train_episodes(kge, triples, settings, seed=2)
    # Once on a part, then on the whole graph.
    assert [len(found) for found in seen["trained"]] == [len(part), len(triples)]
    assert torch.equal(seen["trained"][0], part)
    assert torch.equal(seen["prototypes"][0], part)
    (observed,), (judged,) = (
        [set(map(tuple, found.tolist())) for found in seen[kind]] for kind in ("observed", "judged")
    )
    assert judged
    assert not observed & judged
    assert observed | judged == set(map(tuple, apart.tolist()))


def test_what_other_settings_have_left_is_not_gone_on_with(tmp_path, monkeypatch):
    kge, triples = trained_model(), graph()
    monkeypatch.setattr(episode_training, "_CHECKPOINT_SECONDS", 0.0)
    stop_at(monkeypatch, 3)
    with pytest.raises(Stopped):
        train_episodes(kge, triples, SETTINGS, folder=tmp_path / "e")
    other = EpisodeSettings(num_steps=6, batch_size=8, num_random=2, hidden_share=0.3)
    found, _ = train_episodes(kge, triples, other, folder=tmp_path / "e")
    expected, _ = train_episodes(kge, triples, other)
    assert_equal(states(expected), states(found))


@pytest.mark.parametrize("other", ["weights", "triples"])
def test_what_another_model_or_graph_has_left_is_not_gone_on_with(other, tmp_path, monkeypatch):
    """As where a run was interrupted here, and is then trained further before it comes back."""
    kge, triples = trained_model(), graph()
    monkeypatch.setattr(episode_training, "_CHECKPOINT_SECONDS", 0.0)
    stop_at(monkeypatch, 3)
    with pytest.raises(Stopped):
        train_episodes(kge, triples, SETTINGS, folder=tmp_path / "e")
    if other == "weights":
        with torch.no_grad():
            kge.rel_emb.weight += 0.1
    else:
        triples = triples[:-1]
    found, _ = train_episodes(kge, triples, SETTINGS, folder=tmp_path / "e")
    expected, _ = train_episodes(kge, triples, SETTINGS)
    assert_equal(states(expected), states(found))


def test_a_graph_that_cannot_be_split_takes_the_first_number_of_steps(monkeypatch):
    monkeypatch.setattr(episode_training, "_FIRST", 2)
    triples = torch.tensor([[0, 0, 1], [0, 1, 1]])
    with pytest.warns(UserWarning, match="cannot be split.*; 2 steps of episodic training"):
        _, record = train_episodes(trained_model(), triples, EpisodeSettings(num_random=2))
    assert (record.num_steps, record.tried) == (2, [])


def test_the_loss_falls_and_the_given_model_stays():
    kge, triples = trained_model(), graph()
    before = states(kge)
    losses = []
    for steps in (1, 40):
        settings = EpisodeSettings(num_steps=steps, batch_size=60, lr=0.03)
        losses.append(train_episodes(kge, triples, settings)[1].loss)
    assert losses[1] < losses[0]
    assert_equal(before, states(kge))


def test_a_loss_that_is_not_finite_stops_with_its_step(monkeypatch):
    original = episode_training.episode_loss
    calls = []

    def loss(*args):
        calls.append(None)
        return original(*args) * (float("nan") if len(calls) == 3 else 1)

    monkeypatch.setattr(episode_training, "episode_loss", loss)
    with pytest.raises(DivergenceError, match=r"nan at step 2;.*lr=0\.01"):
        train_episodes(trained_model(), graph(), SETTINGS)


def test_a_gradient_that_is_not_finite_stops_with_its_step(monkeypatch):
    original = episode_training.episode_loss

    def loss(model, *args):
        root = (model.log_weight - model.log_weight.detach()).abs().sqrt().sum()
        return original(model, *args) + root  # finite, with a slope that is not

    monkeypatch.setattr(episode_training, "episode_loss", loss)
    with pytest.raises(DivergenceError, match="'log_weight' is not finite at step 0"):
        train_episodes(trained_model(), graph(), SETTINGS)


def test_repeated_triples_count_once():
    kge, triples = trained_model(), graph()
    one, _ = train_episodes(kge, triples, SETTINGS)
    other, _ = train_episodes(kge, triples.repeat(2, 1), SETTINGS)
    assert_equal(states(one), states(other))


@pytest.mark.parametrize("settings", [{}, {"own_maps": True, "counts": True}])
def test_a_stored_model_scores_the_same(settings):
    model = small_model("rotate", torch.float32, **settings)
    kge = build_model("rotate", num_nodes=7, num_relations=3, hidden_channels=4)
    again = EpisodeModel.from_stored(kge, model.stored())
    assert_equal(states(model), states(again))
    wrong = build_model("rotate", num_nodes=7, num_relations=4, hidden_channels=4)
    with pytest.raises(ValueError, match="do not fit"):
        EpisodeModel.from_stored(wrong, model.stored())


def test_random_maps_of_another_width_are_stored_too():
    model = small_model("rotate", torch.float32, maps="random", hidden_channels=6)
    kge = build_model("rotate", num_nodes=7, num_relations=3, hidden_channels=4)
    assert_equal(states(model), states(EpisodeModel.from_stored(kge, model.stored())))


def test_features_are_a_part_of_training_and_of_what_it_goes_on_from(tmp_path, monkeypatch):
    kge, triples = trained_model(num_nodes=60), graph(60, 400)
    torch.manual_seed(0)
    target = kge.entity_vectors().detach()[5:40] + 0.1
    anchors = Anchors(torch.arange(5, 40), target, torch.full((35,), 0.5))
    settings = EpisodeSettings(batch_size=8, num_random=2, max_steps=2, lr=0.1)
    monkeypatch.setattr(episode_training, "_FIRST", 2)
    model, record = train_episodes(kge, triples, settings, anchors=anchors)
    assert record.num_steps == 2
    assert float(model.log_gamma.detach().exp()) != pytest.approx(0.5)
    plain, _ = train_episodes(kge, triples, settings)
    assert plain.log_gamma is None
    assert not torch.equal(plain.prototypes, model.prototypes)
    # What an interrupted training has left is of its anchors.
    stop_at(monkeypatch, 1)
    with pytest.raises(Stopped):
        train_episodes(kge, triples, SETTINGS, folder=tmp_path / "e", anchors=anchors)
    other = anchors._replace(target=anchors.target * 2)
    found, _ = train_episodes(kge, triples, SETTINGS, folder=tmp_path / "e", anchors=other)
    expected, _ = train_episodes(kge, triples, SETTINGS, anchors=other)
    assert_equal(states(expected), states(found))
