from dataclasses import replace

import pytest
import torch

from sheafprop.data import KnowledgeGraph, assemble
from sheafprop.data.splits import disjoint_split
from sheafprop.errors import DataError
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.training_graph import (
    draw_triples,
    split_training_triples,
    training_graph_as_new,
)
from sheafprop.ranking import evaluate
from sheafprop.ranking.triple_filter import TripleFilter
from tests.inductive.test_inductive_propagation import trained
from tests.toy import toy_data

MODES = ("semi-inductive", "fully-inductive")
SEARCH = PropagationSearch(
    start=("mixed", "random"),
    iterations=(1, 2, 5, 7),
    settings=PropagationSettings(num_random=2),
)


def rows(triples):
    return {tuple(row) for row in triples.tolist()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("without", [("valid",), ("valid", "train_valid")])
def test_what_is_ranked_is_in_no_graph_and_everything_is_of_training(mode, without):
    data = toy_data(mode, without=without)
    part = training_graph_as_new(data, seed=3)
    own = rows(data.train.triples)
    if data.train_valid is not None:
        own |= rows(data.train_valid)
    assert len(part.valid)
    assert not rows(part.valid) & (rows(part.inference.triples) | rows(part.train.triples))
    for triples in (part.valid, part.inference.triples, part.train.triples):
        assert rows(triples) <= own
    assert part.inference.entities is data.train.entities
    assert part.inference.num_nodes == data.train.num_nodes
    again = training_graph_as_new(data, seed=3)
    assert rows(again.valid) == rows(part.valid)
    assert torch.equal(again.boundary_mask, part.boundary_mask)


def test_fully_inductive_all_entities_are_free():
    data = toy_data("fully-inductive", without=("valid",))
    part = training_graph_as_new(data)
    assert part.inference is data.train
    assert part.valid is data.train_valid
    assert not part.boundary_mask.any()
    held = training_graph_as_new(replace(data, train_valid=None))
    assert len(held.valid) == round(0.1 * len(data.train.triples))
    assert rows(held.valid) | rows(held.inference.triples) == rows(data.train.triples)
    # What the diffusion does not see, prototypes do not see either.
    assert rows(held.train.triples) == rows(held.inference.triples)


@pytest.mark.parametrize("without", [("valid",), ("valid", "train_valid")])
def test_semi_inductive_ranks_triples_of_the_new_entities(without):
    data = toy_data(without=without)
    part = training_graph_as_new(data, seed=1)
    new = ~part.boundary_mask
    share = float((~data.boundary_mask).float().mean())
    assert int(new.sum()) == pytest.approx(share * len(new), abs=1)
    assert new[part.valid[:, [0, 2]]].any(dim=1).all()
    # Means of trained vectors are taken over old entities alone.
    assert not new[part.train.triples[:, [0, 2]]].any()
    assert torch.equal(part.boundary_source[~new], torch.arange(len(new))[~new])
    assert (part.boundary_source[new] == -1).all()
    if data.train_valid is not None:
        assert rows(part.valid) | rows(part.test) == rows(data.train_valid) or part.test is (
            data.train_valid
        )


def test_the_share_of_new_entities_has_bounds():
    ring = [(f"a{i}", "next", f"a{(i + 1) % 60}") for i in range(60)]
    ring += [(f"a{i}", "skip", f"a{(i + 2) % 60}") for i in range(60)]
    few = assemble("few", "semi-inductive", train=ring, observed=[("n", "next", "a0")])
    assert int((~training_graph_as_new(few).boundary_mask).sum()) == 6
    observed = [(f"n{i}", "next", "a0") for i in range(500)]
    many = assemble("many", "semi-inductive", train=ring, observed=observed)
    assert int((~training_graph_as_new(many).boundary_mask).sum()) <= 30


def corrupt(data):
    """The same training graph, with another inference graph and other triples to predict."""
    inference = data.inference.triples
    if data.mode == "semi-inductive":
        own = len(data.train.triples)
        inference = torch.cat([inference[:own], inference[own:].flip(0)[: len(inference) // 8]])
    else:
        inference = inference.flip(0)[: len(inference) // 2]
    inference = KnowledgeGraph.from_triples(
        inference,
        num_nodes=data.inference.num_nodes,
        num_relations=data.num_relations,
        entities=data.inference.entities,
        relations=data.inference.relations,
    )
    return replace(data, inference=inference, test=data.test.flip(0)[:2])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("without", [("valid",), ("valid", "train_valid")])
def test_the_choice_sees_no_inference_triple(mode, without):
    data = toy_data(mode, without=without)
    model = trained("rotate", data)
    chosen = SEARCH.select(model, data)
    assert chosen.on == "training graph"
    other = SEARCH.select(model, corrupt(data))
    assert other.curve == chosen.curve
    assert other.settings == chosen.settings


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("without", [("valid",), ("valid", "train_valid")])
def test_the_choice_equals_a_search_by_hand(mode, without):
    """Every setting by itself: propagate, rank, take the best; ties go to fewer iterations."""
    data = toy_data(mode, without=without)
    model = trained("rotate", data)
    part = training_graph_as_new(data)
    sets = {"facts": part.inference.triples, "ranked": part.valid}
    if part.test is not None:
        sets["others"] = part.test
    known = TripleFilter(sets, part.inference.num_nodes, part.num_relations)
    found = {}
    for start in SEARCH.start:
        for count in SEARCH.iterations:
            settings = replace(SEARCH.settings, start=start, iterations=count)
            propagation = InductivePropagation(model, part, settings)
            scorer = propagation.scorer()
            result = evaluate(scorer.score_tails, scorer.score_heads, part.valid, known)
            found[start, count] = result.metrics("full")["mrr"]
    selection = SEARCH.select(model, data)
    curve = {(row["start"], row["iterations"]): row["mrr"] for row in selection.curve}
    assert curve == pytest.approx(found, abs=1e-12)
    best = max(found, key=lambda key: (found[key], -key[1]))
    assert (selection.settings.start, selection.settings.iterations) == best
    assert selection.value == pytest.approx(found[best])
    assert selection.count == len(part.valid)


def test_a_graph_that_cannot_be_split_takes_the_defaults():
    data = assemble("tiny", "semi-inductive", train=[("a", "r", "b")], observed=[("n", "r", "b")])
    with pytest.raises(DataError):
        training_graph_as_new(data)
    selection = SEARCH.select(trained("transe", data), data)
    assert (selection.on, selection.value, selection.tried) == ("defaults", None, 0)
    assert selection.settings.iterations == PropagationSettings().iterations


def test_a_draw_is_seeded_and_keeps_the_order():
    triples = torch.arange(60).view(20, 3)
    first = draw_triples(triples, 6)
    assert torch.equal(first, draw_triples(triples, 6))
    assert torch.equal(first[:, 0], first[:, 0].sort().values)
    assert not torch.equal(first, draw_triples(triples, 6, seed=1))
    assert torch.equal(draw_triples(triples, 20), triples)


@pytest.mark.parametrize("seed", [0, 5])
def test_the_parts_of_a_training_graph_share_no_entity(seed):
    data = toy_data("fully-inductive")
    triples, count = data.train.triples, data.train.num_nodes
    parts = split_training_triples(triples, count, seed=seed)
    assert not set(parts.part_entities.tolist()) & set(parts.other_entities.tolist())
    split = disjoint_split(triples, count, seed=seed)
    for found, entities, mask in (
        (parts.part, parts.part_entities, split.train_mask),
        (parts.other, parts.other_entities, split.new_mask),
    ):
        head, relation, tail = found.unbind(1)
        assert torch.equal(torch.unique(found[:, [0, 2]]), torch.arange(len(entities)))
        back = torch.stack([entities[head], relation, entities[tail]], dim=1)
        assert torch.equal(back, triples[mask])


def test_a_graph_of_one_triple_has_no_parts():
    with pytest.raises(DataError, match="cannot be split"):
        split_training_triples(torch.tensor([[0, 0, 1]]), 2)
