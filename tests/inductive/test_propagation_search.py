from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from sheafprop.inductive import propagation_search, proximity_search
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch, Selection, inference_filter
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.training_graph import draw_triples
from sheafprop.ranking import evaluate
from tests.inductive.test_inductive_propagation import trained, with_features
from tests.toy import toy_data

SEARCH = PropagationSearch(
    start=("mixed", "random"),
    step_size=(0.5, 0.9),
    iterations=(0, 1, 4),
    settings=PropagationSettings(num_random=2),
)


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_the_best_row_on_validation_is_chosen(mode):
    data = toy_data(mode)
    model = trained("rotate", data)
    selection = SEARCH.select(model, data)
    assert selection.on == "validation"
    assert selection.tried == 2 * 2 * 3
    assert selection.value == max(row["mrr"] for row in selection.curve)
    chosen = selection.settings
    propagation = InductivePropagation(model, data, chosen)
    scorer = propagation.scorer()
    again = evaluate(
        scorer.score_tails, scorer.score_heads, data.valid, inference_filter(data)
    ).metrics("full")
    assert again["mrr"] == pytest.approx(selection.value)
    assert SEARCH.select(model, data).to_dict() | {"seconds": 0} == selection.to_dict() | {
        "seconds": 0
    }


def test_each_start_is_ranked_without_propagation_but_never_chosen():
    data = toy_data()
    model = trained("rotate", data)
    plain = PropagationSearch(
        start=("mixed", "random"),
        step_size=(0.5, 0.9),
        iterations=(1, 4),
        settings=PropagationSettings(num_random=2),
    )
    selection, with_zero = plain.select(model, data), SEARCH.select(model, data)
    zero = [row for row in with_zero.curve if row["iterations"] == 0 and row["step_size"] == 0.5]
    assert selection.unpropagated == zero
    assert [row for row in with_zero.curve if row["iterations"]] == selection.curve
    assert selection.value == max(row["mrr"] for row in selection.curve)
    assert with_zero.unpropagated == []
    assert plain.select(model, data, quick=True).unpropagated == []


def test_test_triples_do_not_choose():
    data = toy_data()
    model = trained("transe", data)
    chosen = SEARCH.select(model, data)
    # Other answers to the same test queries leave validation's choice as it is.
    object.__setattr__(data, "test", data.test.flip(0)[:1])
    again = SEARCH.select(model, data)
    assert again.settings == chosen.settings


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_what_is_looked_at_are_the_validation_triples_alone(mode):
    """Every row of the curve is the ranking of the validation triples, to the last one."""
    data = toy_data(mode)
    model = trained("rotate", data)
    # Test triples that share no query with them do not even filter: without those, all is the same.
    asked = {pair for h, r, t in data.valid.tolist() for pair in ((h, r, "?"), ("?", r, t))}
    apart = [not asked & {(h, r, "?"), ("?", r, t)} for h, r, t in data.test.tolist()]
    assert any(apart)
    fewer = replace(data, test=data.test[~torch.tensor(apart)])
    assert SEARCH.select(model, fewer).curve == SEARCH.select(model, data).curve
    for row in SEARCH.select(model, data).curve:
        settings = replace(
            SEARCH.settings, **{key: row[key] for key in ("start", "step_size", "iterations")}
        )
        propagation = InductivePropagation(model, data, settings)
        scorer = propagation.scorer()
        result = evaluate(
            scorer.score_tails, scorer.score_heads, data.valid, inference_filter(data)
        )
        assert row["mrr"] == pytest.approx(result.metrics("full")["mrr"], abs=1e-12)


def test_a_tie_goes_to_fewer_iterations_and_then_to_what_is_named_first(monkeypatch):
    """Every start and step size reaches its best after two counts; the fewest of all count."""
    data = toy_data()
    values = {
        ("mixed", 0.5): (0.25, 0.5, 0.75), ("mixed", 0.9): (0.25, 0.75, 0.75),
        ("random", 0.5): (0.25, 0.75, 0.75), ("random", 0.9): (0.75, 0.5, 0.75),
    }  # fmt: skip

    def chosen(cases):
        order = iter([value for found in cases.values() for value in found])

        class Result:
            def metrics(self, protocol):
                return dict.fromkeys(("hits@1", "hits@3", "hits@10", "mrr"), next(order))

        monkeypatch.setattr(propagation_search, "evaluate", lambda *_, **__: Result())
        settings = SEARCH.select(trained("transe", data), data).settings
        return settings.start, settings.step_size, settings.iterations

    assert chosen(values) == ("random", 0.9, 0)
    values["random", 0.9] = (0.25, 0.5, 0.75)
    assert chosen(values) == ("mixed", 0.9, 1)


def test_quick_looks_at_the_first_start_and_step_only():
    data = toy_data()
    selection = SEARCH.select(trained("transe", data), data, quick=True)
    assert {(row["start"], row["step_size"]) for row in selection.curve} == {("mixed", 0.5)}


def watch_counts(monkeypatch, values):
    """Makes the metrics of the counts those of a table, by start; returns what was ranked."""
    seen = []

    def propagate(self, counts):
        for count in counts:
            seen.append((self.settings.start, count))
            yield count, SimpleNamespace(score_tails=None, score_heads=None)

    class Result:
        def metrics(self, protocol):
            start, count = seen[-1]
            return dict.fromkeys(
                ("hits@1", "hits@3", "hits@10", "mrr"), values[start].get(count, 0)
            )

    monkeypatch.setattr(InductivePropagation, "scorers", propagate)
    monkeypatch.setattr(propagation_search, "evaluate", lambda *_, **__: Result())
    return seen


def test_the_search_stops_once_counts_stay_behind(monkeypatch):
    data = toy_data()
    search = PropagationSearch(start=("mixed", "random"), patience=3)
    values = {"mixed": {1: 0.3, 2: 0.5, 3: 0.4, 4: 0.55, 5: 0.6, 6: 0.2, 7: 0.3, 8: 0.4, 12: 0.9},
              "random": {4: 0.1, 5: 0.5, 6: 0.65, 7: 0.7, 8: 0.7}}  # fmt: skip
    seen = watch_counts(monkeypatch, values)
    selection = search.select(trained("transe", data), data)
    # One count that stays behind does not end the search, three in a row do: 12 is never seen.
    assert [count for start, count in seen if start == "mixed"] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    # The other start begins before the best count, and improves on it in time.
    assert [count for start, count in seen if start == "random"] == [0, 4, 5, 6, 7, 8, 12, 16]
    assert (selection.settings.start, selection.settings.iterations) == ("random", 7)
    assert selection.tried == 8 + 7
    assert len(selection.unpropagated) == 2


def test_without_patience_the_whole_list_is_tried(monkeypatch):
    data = toy_data()
    seen = watch_counts(monkeypatch, {"mixed": {1: 0.9}, "random": {}})
    selection = PropagationSearch().select(trained("transe", data), data)
    assert selection.settings.iterations == 1
    assert selection.tried == 2 * len(PropagationSearch().iterations)
    assert len(seen) == selection.tried + 2


def test_a_quick_look_with_patience_takes_every_third_count(monkeypatch):
    data = toy_data()
    seen = watch_counts(monkeypatch, {"mixed": {1: 0.5, 4: 0.4, 7: 0.6}})
    search = PropagationSearch(patience=2, iterations=(1, 2, 3, 4, 5, 6, 7, 8))
    selection = search.select(trained("transe", data), data, quick=True)
    assert [count for _, count in seen] == [1, 4, 7]
    assert selection.settings.iterations == 7


def test_odd_counts_are_tried_by_default():
    assert {5, 7} <= set(PropagationSearch().iterations)


def test_a_part_of_the_validation_triples_decides_seeded_and_reported():
    data = toy_data()
    model = trained("rotate", data)
    total = len(data.valid)
    search = replace(SEARCH, max_triples=total - 2)
    selection = search.select(model, data)
    assert (selection.count, selection.available) == (total - 2, total)
    assert selection.describe_triples() == f"{total - 2} of {total} validation triples"
    assert search.select(model, data).curve == selection.curve
    drawn = draw_triples(data.valid, total - 2)
    for row in selection.curve:
        settings = replace(
            SEARCH.settings, **{key: row[key] for key in ("start", "step_size", "iterations")}
        )
        propagation = InductivePropagation(model, data, settings)
        scorer = propagation.scorer()
        # The others are known all the same.
        result = evaluate(scorer.score_tails, scorer.score_heads, drawn, inference_filter(data))
        assert row["mrr"] == pytest.approx(result.metrics("full")["mrr"], abs=1e-12)
    quick = replace(SEARCH, max_triples=total).select(model, data, quick=True)
    assert (quick.count, quick.available) == (-(-total // 4), total)
    whole = replace(SEARCH, max_triples=total).select(model, data)
    assert (whole.count, whole.available) == (total, None)
    assert Selection.from_dict(selection.to_dict()) == selection


@pytest.mark.parametrize("most", [2, 50])
def test_fewer_sections_search_and_the_choice_keeps_its_own(most):
    data = toy_data()
    model, settings = trained("rotate", data), replace(SEARCH.settings, num_random=7)
    search = replace(SEARCH, settings=settings, max_random=most)
    selection = search.select(model, data)
    assert selection.settings.num_random == 7
    fewer = replace(SEARCH, settings=replace(settings, num_random=min(most, 7)))
    expected = fewer.select(model, data)
    assert selection.curve == expected.curve
    assert replace(selection.settings, num_random=min(most, 7)) == expected.settings


def test_limits_that_are_not_set_are_not_stored():
    """Checkpoints and configurations that are older than these limits stay comparable."""
    assert not {"max_triples", "patience", "max_random"} & PropagationSearch().to_dict().keys()
    assert PropagationSearch(patience=2).to_dict()["patience"] == 2


def test_filter_holds_every_known_triple():
    data = toy_data()
    known = inference_filter(data)
    everything = torch.cat([data.inference.triples, data.valid, data.test, data.train_valid])
    assert known.num_triples == len(torch.unique(everything, dim=0))
    apart = toy_data("fully-inductive")
    known = inference_filter(apart)
    everything = torch.cat([apart.inference.triples, apart.valid, apart.test])
    assert known.num_triples == len(torch.unique(everything, dim=0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(start=()), "at least one"),
        (dict(iterations=(4, 2)), "ascend"),
        (dict(metric="auc"), "got 'auc'"),
        (dict(max_triples=0), "max_triples"),
        (dict(patience=0), "patience"),
        (dict(max_random=0), "max_random"),
    ],
)
def test_bad_search_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PropagationSearch(**arguments)


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (3, 1), (5, 2), (8, 2)])
def test_a_quick_look_ranks_a_quarter_of_the_limit(limit, count):
    search = replace(SEARCH, max_triples=limit)
    assert len(search.draw(toy_data()).triples) == limit
    assert len(search.draw(toy_data(), quick=True).triples) == count


@pytest.mark.parametrize("valid", [True, False])
def test_features_of_entities_taken_as_new_are_not_known(monkeypatch, valid):
    """A leak test: the map that is fitted to the whole training graph knows their vectors."""
    data = with_features("semi-inductive")
    model = trained("rotate", data)
    whole = InductivePropagation(model, data, SEARCH.settings).feature_map
    given, original = [], InductivePropagation

    def watch(model, data, settings, feature_map=None):
        given.append(feature_map)
        return original(model, data, settings, feature_map)

    monkeypatch.setattr(propagation_search, "InductivePropagation", watch)
    monkeypatch.setattr(proximity_search, "InductivePropagation", watch)
    data = data if valid else replace(data, valid=None)
    search = replace(SEARCH, start=("mixed",), step_size=(0.9,))
    selection = search.select(model, data, feature_map=whole)
    proximity_search.ProximitySearch(share="auto").select(
        model, data, search, selection, feature_map=whole
    )
    assert len(given) == 2
    assert all((one is whole) if valid else (one is None) for one in given)


def test_triples_to_select_on_are_filtered_by_all_that_is_known():
    data = toy_data("fully-inductive")
    known = SEARCH.draw(data).known
    for part in (data.inference.triples, data.valid, data.test):
        head, relation, tail = part[:1].unbind(1)
        assert tail in known.tails(head, relation)[1]
