from dataclasses import replace

import pytest
import torch

from sheafprop.inductive import propagation_search
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch, inference_filter
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.ranking import evaluate
from tests.inductive.test_inductive_propagation import trained
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
    scorer = propagation.scorer(propagation.vectors())
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
        scorer = propagation.scorer(propagation.vectors())
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


def test_without_validation_the_defaults_are_taken_and_named():
    data = toy_data(without=("valid",))
    selection = SEARCH.select(trained("transe", data), data)
    assert (selection.on, selection.value, selection.tried) == ("defaults", None, 0)
    assert selection.settings.start == "mixed"
    assert selection.settings.iterations == PropagationSettings().iterations


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
    ],
)
def test_bad_search_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PropagationSearch(**arguments)
