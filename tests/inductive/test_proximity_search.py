"""Weights of proximity are selected by the triples of the propagation, its metric and MRR."""

from dataclasses import replace

import pytest
import torch

from sheafprop.data import InductiveData
from sheafprop.inductive import proximity_search
from sheafprop.inductive.episode_model import EpisodeSettings
from sheafprop.inductive.episode_scorer import score_by_episodes
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch, inference_filter
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import LogProximity, ProximitySettings, add_proximity
from sheafprop.inductive.proximity_search import (
    FREQUENCIES,
    LEFT_OUT,
    PEERS,
    TELEPORTS,
    TOO_LARGE,
    WEIGHTS,
    ProximitySearch,
    selected_weights,
)
from sheafprop.inductive.training_graph import training_graph_as_new
from sheafprop.ranking import evaluate
from sheafprop.ranking.protocols import MAIN_METRICS
from sheafprop.training.episode_training import train_episodes
from tests.inductive.test_inductive_propagation import trained
from tests.toy import toy_data

SEARCH = PropagationSearch(
    start=("mixed",), iterations=(1, 3), metric="hits@3", settings=PropagationSettings(num_random=2)
)
AUTO = ProximitySearch(weight="auto", share="auto", peers="auto", num_iterations=6)
ALL = replace(AUTO, frequency="auto", teleport="auto")


def with_episodes(model, data, **more):
    settings = EpisodeSettings(num_steps=2, num_random=2, **more)
    return train_episodes(model, data.train.triples, settings)[0]


def metrics_of(data, graph, near, scorer, settings):
    """The metrics of validation triples under settings, one ranking for each."""
    observed = graph.inference.triples
    given = observed, data.train.triples, data.num_relations
    both = add_proximity(scorer, near, settings, *given)
    known = inference_filter(graph)
    return evaluate(both.score_tails, both.score_heads, graph.valid, known).metrics("full")


def select(data, search=AUTO, episodes=None, propagation=SEARCH, model=None, **more):
    model = model or trained("rotate", data)
    selection = propagation.select(model, data)
    found = search.select(model, data, propagation, selection, episodes=episodes, **more)
    assert replace(found, proximity=None, seconds=0.0) == replace(selection, seconds=0.0)
    assert found.seconds >= selection.seconds
    return found.proximity, selection


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
@pytest.mark.parametrize("walk_steps", [None, 0, 2])
@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("search", [AUTO, ALL])
def test_the_best_weights_are_selected(mode, walk_steps, valid, search):
    """Every row is what one ranking with its settings gives."""
    data = toy_data(mode, without=() if valid else ("valid",))
    model = trained("rotate", data)
    episodes = None if walk_steps is None else with_episodes(model, data, walk_steps=walk_steps)
    selected, selection = select(data, search, episodes=episodes, model=model, seed=3)
    graph = data if valid else training_graph_as_new(data)
    vectors = InductivePropagation(model, graph, selection.settings).scorer()
    methods = {"share": (vectors, None)}
    if episodes is not None:
        scorer = score_by_episodes(episodes, graph, vectors, seed=3)
        methods = {"weight": (scorer, episodes.log_walk)} | methods
    curve, chosen = list(selected["curve"]), {}
    for name, (scorer, log_weight) in methods.items():
        observed, count = graph.inference.triples, graph.inference.num_nodes
        teleports = TELEPORTS if search == ALL else (0.15,)
        first = [
            {name: weight, "peers": peers, "teleport": teleport}
            for teleport in ([chosen["teleport"]] if chosen else teleports)
            for peers in ([chosen["peers"]] if chosen else PEERS)
            for weight in WEIGHTS
            if weight or chosen or (peers, teleport) == (0, 0.15)  # else as without both
        ]
        best = None
        for stage in (first, FREQUENCIES[1:] if search == ALL and name == "share" else ()):
            for one in stage if stage is first else [best[1] | {"frequency": f} for f in stage]:
                settings = ProximitySettings(**(chosen | one), num_iterations=6)
                near = LogProximity.of_settings(settings, observed, count, log_weight)
                expected = metrics_of(data, graph, near, scorer, settings)
                row = curve.pop(0)
                shown = one if name == "weight" else {"frequency": 0.0} | one
                assert {key: row[key] for key in shown} == shown
                assert row.keys() == shown.keys() | set(MAIN_METRICS)
                for metric in MAIN_METRICS:
                    assert row[metric] == pytest.approx(expected[metric])
                value = row["hits@3"] + row["mrr"]
                if best is None or value > best[0]:
                    best = value, one
        chosen |= best[1]
    assert curve == []
    assert selected["on"] == ("validation" if valid else "training graph")
    assert selected["count"] == len(graph.valid)
    assert selected["chosen"] == ProximitySettings(**chosen, num_iterations=6).to_dict()
    assert search.settings_of(selected) == ProximitySettings(**chosen, num_iterations=6)


def test_blocks_of_queries_do_not_matter(monkeypatch):
    data = toy_data()
    whole, _ = select(data, ALL)
    monkeypatch.setattr(proximity_search, "_MOST", 3 * data.inference.num_nodes)
    parts, _ = select(data, ALL)
    for one, other in zip(whole["curve"], parts["curve"], strict=True):
        assert one == pytest.approx(other)
    assert whole["chosen"] == parts["chosen"]


def test_scores_and_walks_are_computed_once(monkeypatch):
    data = toy_data("fully-inductive")
    model = trained("rotate", data)
    calls = []
    walk = LogProximity.probabilities

    def count(self, entity, relation, side):
        calls.append(side)
        return walk(self, entity, relation, side)

    monkeypatch.setattr(LogProximity, "probabilities", count)
    fixed_peers = replace(AUTO, peers=0.5)
    _, selection = select(data, model=model)
    calls.clear()
    fixed_peers.select(model, data, SEARCH, selection)
    # Once for the entity's own proximity and once for that of peers, on both sides.
    assert sorted(calls) == ["head", "head", "tail", "tail"]
    calls.clear()
    replace(fixed_peers, teleport="auto").select(model, data, SEARCH, selection)
    # The same for each of three walks.
    assert sorted(calls) == ["head"] * 6 + ["tail"] * 6


def test_only_weights_that_are_auto_are_selected():
    data = toy_data()
    model = trained("rotate", data)
    episodes = with_episodes(model, data)
    search = ProximitySearch(weight=0.7, share="auto", peers=0.1, own_last=False, teleport=0.3)
    selected, _ = select(data, search, episodes, model=model)
    assert {(row.get("weight"), row["peers"]) for row in selected["curve"]} == {(None, 0.1)}
    assert [row["share"] for row in selected["curve"]] == list(WEIGHTS)
    chosen = dict(selected["chosen"])
    assert chosen.pop("share") in WEIGHTS
    fixed = dict(weight=0.7, peers=0.1, own_last=False, teleport=0.3, num_iterations=20)
    fixed |= {"frequency": 0.0}
    assert chosen == fixed
    assert not search.is_fixed
    assert replace(search, share=0.2).is_fixed
    assert replace(search, share=0.2).settings() == ProximitySettings(share=0.2, **fixed)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_frequency_alone_is_selected(share, monkeypatch):
    data = toy_data("fully-inductive")
    model = trained("rotate", data)
    fixed = dict(weight=0.7, share=share, peers=0.25, teleport=0.2, num_iterations=20)
    search = ProximitySearch(frequency="auto", **fixed)
    # Nothing is selected for the score of episodes, so it is not needed.
    monkeypatch.setattr(proximity_search, "score_by_episodes", lambda *_, **__: 1 / 0)
    selected, selection = select(data, search, with_episodes(model, data), model=model)
    vectors = InductivePropagation(model, data, selection.settings).scorer()
    near = LogProximity(data.inference.triples, data.inference.num_nodes, teleport=0.2)
    values = []
    for row, frequency in zip(selected["curve"], FREQUENCIES, strict=True):
        settings = ProximitySettings(**fixed, frequency=frequency)
        expected = metrics_of(data, data, near, vectors, settings)
        assert (row["share"], row["frequency"], row["teleport"]) == (share, frequency, 0.2)
        assert row["mrr"] == pytest.approx(expected["mrr"])
        values.append(row["hits@3"] + row["mrr"])
    best = FREQUENCIES[values.index(max(values))]
    assert selected["chosen"] == ProximitySettings(**fixed, frequency=best).to_dict()


def test_a_sample_of_the_triples_selects():
    data = toy_data("fully-inductive")
    model = trained("rotate", data)
    few = replace(SEARCH, max_triples=4)
    selected, _ = select(data, propagation=few, model=model)
    drawn = few.draw(data)
    assert len(drawn.triples) == 4
    (row,) = [row for row in selected["curve"] if row["share"] == 0]
    vectors = InductivePropagation(model, data, few.select(model, data).settings).scorer()
    near = LogProximity(data.inference.triples, data.inference.num_nodes)
    given = data.inference.triples, data.train.triples, data.num_relations
    both = add_proximity(vectors, near, ProximitySettings(share=0.0), *given)
    known = inference_filter(data)
    found = evaluate(both.score_tails, both.score_heads, drawn.triples, known).metrics("full")
    assert row["mrr"] == pytest.approx(found["mrr"])


def test_the_search_takes_fewer_random_sections():
    data = toy_data()
    model = trained("rotate", data)
    _, selection = select(data, model=model)
    few, many = (replace(SEARCH, max_random=number) for number in (1, 9))
    of_one = replace(selection, settings=replace(selection.settings, num_random=1))
    curve = AUTO.select(model, data, few, selection).proximity["curve"]
    assert curve == AUTO.select(model, data, SEARCH, of_one).proximity["curve"]
    assert curve != AUTO.select(model, data, SEARCH, selection).proximity["curve"]
    assert many.limit(selection.settings) == selection.settings


def test_test_triples_only_filter():
    """A leak test: further test triples that filter nothing new change nothing."""
    data = toy_data("fully-inductive")
    model = trained("rotate", data)
    first, _ = select(data, model=model)
    observed = data.inference.triples[:5]
    second, _ = select(replace(data, test=torch.cat([data.test, observed])), model=model)
    assert first["curve"] == second["curve"]


def test_without_triples_the_defaults_are_used():
    data = toy_data("fully-inductive", without=("valid", "train_valid"))
    few = data.train.triples[:1]
    train = type(data.train).from_triples(
        few, entities=data.train.entities, relations=data.train.relations
    )
    data = replace(data, train=train)
    assert isinstance(data, InductiveData)
    assert SEARCH.draw(data) is None
    selected, selection = select(data)
    assert selection.on == "defaults"
    assert selected["curve"] == []
    assert (selected["on"], selected["count"]) == ("defaults", 0)
    assert selected["chosen"] == ProximitySettings(num_iterations=6).to_dict()


def test_proximity_is_left_out_on_large_graphs_unless_it_is_asked_for(monkeypatch):
    data = toy_data()
    model = trained("rotate", data)
    episodes = with_episodes(model, data)
    monkeypatch.setattr("sheafprop.inductive.proximity_scorer._MOST_PRODUCTS", 1.0)
    zero = {"weight": 0.0, "share": 0.0, "peers": 0.0}
    for search, own, expected in (
        (AUTO, None, None),
        (AUTO, episodes, None),
        (replace(AUTO, weight=0.4), None, None),
        (replace(AUTO, weight=0.4), episodes, zero | {"weight": 0.4}),
        (replace(AUTO, share=0.4), None, zero | {"share": 0.4}),
        (replace(AUTO, share=0.4), episodes, zero | {"share": 0.4}),
        (replace(AUTO, share=0.4, peers=0.1), episodes, zero | {"share": 0.4, "peers": 0.1}),
        (ALL, None, None),
        (replace(ALL, share=0.4), None, zero | {"share": 0.4, "frequency": 0.0, "teleport": 0.15}),
        (replace(ALL, frequency=0.3), None, zero | {"frequency": 0.3, "teleport": 0.15}),
    ):
        selected, _ = select(data, search, own, model=model)
        walks = expected is not None and (expected["weight"] > 0 or expected["share"] > 0)
        assert selected["note"] == (TOO_LARGE if walks else LEFT_OUT)
        assert selected["curve"] == []
        if expected is None:
            assert selected["chosen"] is None
            assert search.settings_of(selected) is None
        else:
            assert {k: selected["chosen"][k] for k in expected} == expected


def test_large_is_counted_with_the_steps_of_the_walk(monkeypatch):
    """Two directions of each observed triple, the entities of the triples, six steps."""
    data = toy_data()
    products = 2 * data.inference.num_edges * len(data.valid[:, [0, 2]].unique()) * 6
    for most, tried in ((products, True), (products - 1, False)):
        monkeypatch.setattr("sheafprop.inductive.proximity_scorer._MOST_PRODUCTS", float(most))
        assert bool(select(data)[0]["curve"]) is tried


def test_one_teleport_is_tried_where_the_walks_of_all_take_too_long(monkeypatch):
    data = toy_data()
    products = 2 * data.inference.num_edges * len(data.valid[:, [0, 2]].unique()) * 6
    for most, teleports in ((3 * products, set(TELEPORTS)), (3 * products - 1, {0.15})):
        monkeypatch.setattr("sheafprop.inductive.proximity_scorer._MOST_PRODUCTS", float(most))
        selected, _ = select(data, ALL)
        assert {row["teleport"] for row in selected["curve"] if row["share"]} == teleports
        assert "note" not in selected
        fixed, _ = select(data, replace(ALL, teleport=0.3))
        assert {row["teleport"] for row in fixed["curve"]} == {0.3}


def test_a_selection_fits_what_it_was_made_for():
    data = toy_data()
    model = trained("rotate", data)
    selected, _ = select(data, model=model)
    assert AUTO.fits(selected, None)
    assert not AUTO.fits(None, None)
    assert not AUTO.fits(selected, with_episodes(model, data))
    assert not replace(AUTO, teleport=0.2).fits(selected, None)
    # A search that was stored before there were frequencies.
    before = dict(selected["search"])
    del before["frequency"]
    assert AUTO.fits(selected | {"search": before}, None)
    assert not ALL.fits(selected | {"search": before}, None)


def test_searches_from_settings_and_plain_values():
    settings = ProximitySettings(weight=0.1, peers=0.2, own_last=False)
    assert ProximitySearch.of(settings).settings() == settings
    assert ProximitySearch.of(settings).is_fixed
    assert ProximitySearch.of(AUTO) is AUTO
    assert ProximitySearch.of(AUTO.to_dict()) == AUTO
    assert AUTO.settings() == ProximitySettings(num_iterations=6)


@pytest.mark.parametrize("name", ["weight", "share", "peers", "frequency", "teleport"])
def test_values_that_are_no_weights_are_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' must be a number or 'auto' \\(got 'best'\\)"):
        ProximitySearch(**{name: "best"})
    reason = "lie between 0 and 1" if name == "teleport" else "be finite and not negative"
    with pytest.raises(ValueError, match=f"'{name}' must {reason}"):
        ProximitySearch(**{name: -1.0})


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ()),
        ({"weight": "auto"}, ("weight",)),
        ({"share": "auto"}, ("share",)),
        ({"peers": "auto"}, ("weight", "share")),
        ({"teleport": "auto"}, ("weight", "share")),
        ({"frequency": "auto"}, ("share",)),
    ],
)
def test_weights_that_validation_selects(given, names):
    search = ProximitySearch(**given)
    assert search.selects == names
    assert search.is_fixed is (not names)
    for on, expected in (("validation", names), ("training graph", ()), ("defaults", ())):
        assert selected_weights({"on": on, "search": search.to_dict()}) == expected
    assert selected_weights(None) == ()
