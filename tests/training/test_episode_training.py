import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from sheafprop.errors import DivergenceError
from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.feature_map import Anchors
from sheafprop.inductive.training_graph import split_training_triples
from sheafprop.kge import build_model
from sheafprop.training import episode_training
from sheafprop.training.episode_training import EpisodeTraining, WalkTraining, train_episodes
from tests.inductive.episode_cases import random_triples, small_model

SETTINGS = EpisodeSettings(num_steps=6, batch_size=8, num_random=2)
WALKING = replace(SETTINGS, num_steps=2, walk_steps=6)


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


def stop_at(monkeypatch, step, kind=EpisodeTraining):
    """Lets a step fail, once, as if the process had been killed in it."""
    original = kind.training_step
    left = [True]

    def training_step(self, batch, batch_idx):
        if self.global_step == step and left[0]:
            left[0] = False
            raise Stopped
        return original(self, batch, batch_idx)

    monkeypatch.setattr(kind, "training_step", training_step)


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
    assert (record.num_steps, record.walk_loss) == (6, None)
    assert not folder.exists()


@pytest.mark.parametrize("step", [1, 4])
def test_a_training_that_is_interrupted_in_the_walk_ends_as_an_unbroken_one(
    step, tmp_path, monkeypatch
):
    kge, triples = trained_model(), graph()
    whole, expected = train_episodes(kge, triples, WALKING, seed=3)
    monkeypatch.setattr(episode_training, "_CHECKPOINT_SECONDS", 0.0)
    stop_at(monkeypatch, step, WalkTraining)
    folder = tmp_path / "episodes"
    with pytest.raises(Stopped):
        train_episodes(kge, triples, WALKING, seed=3, folder=folder)
    assert (folder / "walk.ckpt").is_file()
    taken = []
    original = WalkTraining.training_step
    monkeypatch.setattr(
        WalkTraining,
        "training_step",
        lambda self, *given: taken.append(self.global_step) or original(self, *given),
    )
    again, record = train_episodes(kge, triples, WALKING, seed=3, folder=folder)
    assert taken == list(range(step, 6))
    assert_equal(states(whole), states(again))
    assert record.walk_loss == expected.walk_loss
    assert not folder.exists()


@pytest.mark.parametrize("observed", ["frequency", "number"])
def test_a_relation_without_training_triples_keeps_the_weight_it_starts_from(observed):
    triples = graph()
    triples = triples[triples[:, 1] != 1]
    settings = replace(SETTINGS, observed=observed, count_weight=1.3, weight_decay=0)
    model, _ = train_episodes(trained_model(), triples, settings)
    weight = model.count_weight.detach()
    torch.testing.assert_close(weight[[1, 4]], torch.full((2,), 1.3))
    assert bool((weight[[0, 2, 3, 5]] != 1.3).all())


def test_other_settings_of_the_walk_do_not_go_on_with_it(tmp_path, monkeypatch):
    kge, triples = trained_model(), graph()
    monkeypatch.setattr(episode_training, "_CHECKPOINT_SECONDS", 0.0)
    stop_at(monkeypatch, 3, WalkTraining)
    with pytest.raises(Stopped):
        train_episodes(kge, triples, WALKING, folder=tmp_path / "e")
    other = replace(WALKING, walk_lr=0.4)
    found, _ = train_episodes(kge, triples, other, folder=tmp_path / "e")
    expected, _ = train_episodes(kge, triples, other)
    assert_equal(states(expected), states(found))


def test_the_walk_is_trained_after_the_episodes_and_alone(monkeypatch):
    kge, triples = trained_model(), graph()
    plain, without = train_episodes(kge, triples, replace(WALKING, walk_steps=0))
    assert (plain.log_walk, without.walk_loss) == (None, None)
    before = []
    original = WalkTraining.__init__
    monkeypatch.setattr(
        WalkTraining,
        "__init__",
        lambda self, model, *given: before.append(states(model)) or original(self, model, *given),
    )
    model, record = train_episodes(kge, triples, WALKING)
    after = states(model)
    moved = after.pop("log_walk")
    (start,) = before
    assert torch.equal(start.pop("log_walk"), torch.zeros(6, 3))
    assert float(moved.abs().min()) > 0
    # Episodes and walk do not see each other.
    assert_equal(states(plain), start)
    assert_equal(states(plain), after)
    assert record.loss == without.loss
    assert 0 < record.walk_loss < 10
    assert not model.training


def test_the_walk_is_trained_on_the_training_triples_alone(monkeypatch):
    kge, triples = trained_model(num_nodes=32), graph(30)  # two entities have no triple
    given = []
    original = episode_training.walk_loss
    monkeypatch.setattr(episode_training, "walk_loss", lambda *a: given.append(a) or original(*a))
    model, _ = train_episodes(kge, triples.repeat(2, 1), WALKING)
    assert len(given) == WALKING.walk_steps
    draws = set()
    for log_weight, seen, num_nodes, known, may_loop, generator in given:
        assert log_weight is model.log_walk
        assert torch.equal(seen, triples)
        assert num_nodes == 32
        row, tail = known.tails(triples[:, 0], triples[:, 1])
        answers = set(map(tuple, torch.stack([triples[row, 0], triples[row, 1], tail], 1).tolist()))
        assert answers == set(map(tuple, triples.tolist()))
        loops = {r for h, r, t in triples.tolist() if h == t}
        assert may_loop.tolist() == [r in loops for r in range(3)]
        draws.add(generator.initial_seed())
    assert len(draws) == len(given)  # each step hides others


def test_the_walk_learns_which_relations_lead_to_answers():
    """Relation 0 holds where relation 1 does; relation 2 is drawn, and far more often."""
    pairs = random_triples(40, 1, 60, seed=1)
    drawn = random_triples(40, 1, 200, seed=2) + torch.tensor([0, 2, 0])
    triples = torch.cat([pairs, pairs + torch.tensor([0, 1, 0]), drawn])
    settings = replace(WALKING, walk_steps=30)
    model, record = train_episodes(trained_model(num_nodes=40), triples, settings)
    log_weight = model.log_walk.detach()
    for query in (0, 3):  # also for its inverse
        assert float(log_weight[query, 1] - log_weight[query, 2]) > 2
    _, short = train_episodes(trained_model(num_nodes=40), triples, replace(settings, walk_steps=1))
    assert record.walk_loss < short.walk_loss


def test_weights_of_a_single_relation_stay():
    kge = build_model("rotate", num_nodes=30, num_relations=1, hidden_channels=4)
    kge.reset_parameters(0)
    settings = replace(WALKING, walk_steps=12, walk_lr=100.0)
    model, _ = train_episodes(kge, random_triples(30, 1, 80), settings)
    assert torch.equal(model.log_walk.detach(), torch.zeros(2, 1))


def test_the_loss_of_the_walk_is_logged(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    _, record = train_episodes(trained_model(), graph(), WALKING, loggers=[logger])
    frame = pd.read_csv(tmp_path / "metrics.csv")
    assert frame["episodes/loss"].notna().sum() == 2
    logged = frame["walk/loss"].dropna()
    assert len(logged) == 6
    assert logged.iloc[-1] == pytest.approx(record.walk_loss)


@pytest.mark.parametrize("kind", ["episode", "walk"])
def test_parameters_beyond_the_finite_numbers_stop_with_their_step(kind):
    change = {"lr": 1e30} if kind == "episode" else {"walk_lr": 1e30}
    text = r"step 1.*\((walk_)?lr=1e\+30\)"
    with pytest.raises(DivergenceError, match=text):
        train_episodes(trained_model(), graph(), replace(WALKING, **change))


def test_a_loss_of_the_walk_that_is_not_finite_stops_with_its_step(monkeypatch):
    original = episode_training.walk_loss
    calls = []

    def loss(*args):
        calls.append(None)
        return original(*args) * (float("nan") if len(calls) == 3 else 1)

    monkeypatch.setattr(episode_training, "walk_loss", loss)
    with pytest.raises(DivergenceError, match=r"loss of walk became nan at step 2;.*walk_lr=0\.15"):
        train_episodes(trained_model(), graph(), WALKING)


def test_a_gradient_of_the_walk_that_is_not_finite_stops_with_its_step(monkeypatch):
    original = episode_training.walk_loss

    def loss(log_weight, *args):
        root = (log_weight - log_weight.detach()).abs().sqrt().sum()
        return original(log_weight, *args) + root  # finite, with a slope that is not

    monkeypatch.setattr(episode_training, "walk_loss", loss)
    with pytest.raises(DivergenceError, match=r"'log_walk' is not finite at step 0.*walk_lr=0\.15"):
        train_episodes(trained_model(), graph(), WALKING)


def test_weights_of_the_walk_that_are_not_finite_stop_with_their_step(monkeypatch):
    original = WalkTraining.__init__

    def build(self, model, *given):
        with torch.no_grad():
            model.log_walk[0, 1] = float("nan")
        original(self, model, *given)

    monkeypatch.setattr(WalkTraining, "__init__", build)
    with pytest.raises(DivergenceError, match=r"walk: 'weight' must be finite.*at step 0"):
        train_episodes(trained_model(), graph(), WALKING)


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


@pytest.mark.parametrize(("value", "error"), [(79.0, ValueError), (81.0, DivergenceError)])
def test_errors_have_another_cause_while_parameters_are_small(monkeypatch, value, error):
    def loss(model, *_):
        with torch.no_grad():
            model.log_weight[-1] = -value
        raise ValueError("no such entity")

    monkeypatch.setattr(episode_training, "episode_loss", loss)
    with pytest.raises(error, match="no such entity") as found:
        train_episodes(trained_model(), graph(), SETTINGS)
    assert ("learning rate" in str(found.value)) == (error is DivergenceError)


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
