import json
import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.query import STRUCTURES, EntityScorer, LinkProbabilities, QueryBatch, QueryShape
from sheafprop.query.derivation import explain_answers
from tests.query.entity_cases import (
    TableScorer,
    enumerate_truth,
    fill_slots,
    random_links,
    random_tree,
)


def all_derivations(shape, slots, entity, p):
    """Every derivation of an entity: its tree of operators and entities, and its truth."""
    if shape.operator == "anchor":
        return {("anchor", entity): 1.0} if slots[0] == entity else {}
    if shape.operator == "via":
        return {
            ("via", entity, inner): truth * p[slots[-1], u, entity]
            for u in range(p.shape[1])
            for inner, truth in all_derivations(shape.branches[0], slots[:-1], u, p).items()
        }
    if shape.operator == "not":
        return {("not", entity): 1 - enumerate_truth(shape.branches[0], slots, p)[entity]}
    parts = [
        all_derivations(branch, slots[own], entity, p)
        for branch, own in zip(shape.branches, shape.branch_slots, strict=True)
    ]
    if shape.operator == "or":
        return {("or", i, key): t for i, part in enumerate(parts) for key, t in part.items()}
    return {
        ("and", entity, *(key for key, _ in terms)): math.prod(t for _, t in terms)
        for terms in product(*(part.items() for part in parts))
    }


def signature(one):
    if one.operator in ("anchor", "not"):
        return (one.operator, one.entity)
    return (one.operator, one.entity, *map(signature, one.branches))


def without_choice(key):
    """The signature of a derivation does not say which of equal branches was taken."""
    if key[0] == "or":
        return ("or", last_entity(key[2]), without_choice(key[2]))
    return tuple(without_choice(part) if isinstance(part, tuple) else part for part in key)


def last_entity(key):
    return last_entity(key[2]) if key[0] == "or" else key[1]


def check_derivations(shape, seed, n, count):
    rng = np.random.default_rng(seed)
    links, p = random_links(seed, n, facts=2 * n)
    batch = QueryBatch(shape, fill_slots(shape, rng, n, 2, 2))
    answers = torch.from_numpy(rng.integers(n, size=2))
    found = explain_answers(EntityScorer(links, "all"), batch, answers, count)
    for slots, entity, own in zip(batch.slots.tolist(), answers.tolist(), found, strict=True):
        every = [
            (without_choice(k), t) for k, t in all_derivations(shape, slots, entity, p).items()
        ]
        best = sorted((t for _, t in every if t > 0), reverse=True)[:count]
        np.testing.assert_allclose([one.truth for one in own], best, rtol=1e-9)
        for one in own:
            assert one.entity == entity
            assert any(
                key == signature(one) and math.isclose(t, one.truth, rel_tol=1e-9)
                for key, t in every
            )
        if not shape.has("or") and own:
            assert own[0].truth == pytest.approx(enumerate_truth(shape, slots, p)[entity])
            assert len({signature(one) for one in own}) == len(own)
        for one in own:
            for link in one.links():
                step = p[link["relation"], link["source"], link["target"]]
                assert link["probability"] == pytest.approx(step)
                assert link["is_fact"] == (step == 1)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("count", [1, 4])
def test_the_best_derivations_are_those_of_enumeration(name, count):
    check_derivations(STRUCTURES[name], len(name) + count, 6, count)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_the_best_derivations_of_deeper_trees_are_those_of_enumeration(seed, count):
    shape = random_tree(np.random.default_rng(seed), 3)
    check_derivations(shape, seed, 3, count)


def test_links_are_facts_or_predicted():
    class Scorer:
        def score_links(self, entities, relation, inverse):
            scores = torch.zeros(len(entities), 5)
            scores[:, 3] = math.log(6)
            return scores

    facts = torch.tensor([[0, 0, 1], [4, 1, 2]])
    scorer = EntityScorer(LinkProbabilities(facts, 5, 2, Scorer()), 2)
    shape = QueryBatch.of("pni", torch.tensor([[0, 0, 1, 4, 1]]))
    ((one,),) = explain_answers(scorer, shape, torch.tensor([2]))
    names = ("depth", "source", "relation", "target", "is_fact", "negated")
    links = list(one.links())
    assert [tuple(link[name] for name in names) for link in links] == [
        (0, 1, 1, 2, False, True),
        (1, 0, 0, 1, True, True),
        (0, 4, 1, 2, True, False),
    ]
    assert [link["probability"] for link in links] == pytest.approx([0.1, 1, 1])
    tree = one.tree("abcde".__getitem__, ["r", "s"].__getitem__)
    assert json.loads(json.dumps(tree)) == tree
    against, support = tree["branches"]
    assert (against["operator"], against["entity"]) == ("not", "c")
    assert against["truth"] == pytest.approx(1 - against["branches"][0]["truth"])
    assert support == {
        "operator": "via",
        "entity": "c",
        "truth": 1.0,
        "relation": "s",
        "link": "fact",
        "probability": 1.0,
        "branches": [{"operator": "anchor", "entity": "e", "truth": 1.0, "branches": []}],
    }


@pytest.mark.parametrize("name", ["2p", "3p", "pi", "up"])
def test_a_cut_interior_and_few_kept_rows_are_explained_alike(name, monkeypatch):
    links, _ = random_links(3, 10, dtype=torch.float32, cache_bytes=0)
    scorer, shape = EntityScorer(links, 3), STRUCTURES[name]
    batch = QueryBatch(shape, fill_slots(shape, np.random.default_rng(0), 10, 2, 5))
    answers = torch.arange(5)
    found = explain_answers(scorer, batch, answers, 3)
    truth = scorer.score(batch)[torch.arange(5), answers].exp()
    for own, t in zip(found, truth.tolist(), strict=True):
        if shape.has("or"):
            assert own[0].truth <= t + 1e-6
        else:
            assert own[0].truth == pytest.approx(t, rel=1e-5)
    monkeypatch.setattr("sheafprop.query.derivation._NUMBERS", 20)
    assert explain_answers(scorer, batch, answers, 3) == found


def _not(shape):
    return QueryShape("not", (shape,))


@pytest.mark.parametrize("form", ["not not", "not and", "and not", "via"])
@pytest.mark.parametrize("known", [True, False])
def test_what_supports_an_answer_through_two_negations_is_shown(form, known):
    """Also where the inner negation is impossible, because what it negates is a fact."""
    hop, table = STRUCTURES["1p"], torch.zeros(2, 3, 3)
    facts = torch.tensor([[0, 0, 1]] if known else [[2, 0, 0]])
    both = QueryShape("and", (_not(hop), _not(hop)))
    shape, slots = {
        "not not": (_not(_not(hop)), [0, 0]),
        "not and": (_not(both), [2, 1, 0, 0]),
        "and not": (QueryShape("and", (_not(both), hop)), [2, 1, 0, 0, 0, 0]),
        "via": (QueryShape("via", (_not(_not(hop)),)), [0, 0, 1]),
    }[form]
    scorer = EntityScorer(LinkProbabilities(facts, 3, 1, TableScorer(table)))
    entity = 0 if form == "via" else 1
    ((one,),) = explain_answers(
        scorer, QueryBatch(shape, torch.tensor([slots])), torch.tensor([entity])
    )
    inner = [link for link in one.links() if (link["source"], link["relation"]) == (0, 0)]
    assert inner
    for link in inner:
        assert (link["is_fact"], link["negated"]) == (known, False)
    truth = scorer.score(QueryBatch(shape, torch.tensor([slots])))[0, entity].exp().item()
    assert one.truth == pytest.approx(truth)


def test_a_row_is_asked_for_once_by_all_answers_to_a_query():
    links, _ = random_links(3, 10, cache_bytes=0)
    scorer = EntityScorer(links, 4)
    one = QueryBatch.of("3p", torch.tensor([[0, 0, 1, 1]]))
    explain_answers(scorer, one, torch.tensor([5]))
    # Those of the beam of the third hop, of the second, and of the anchor, and what leads to them.
    assert len(links.scorer.asked) == (4 + 4 + 1) + (4 + 1) + 1
    asked, links.scorer.asked = links.scorer.asked, []
    explain_answers(scorer, one[torch.zeros(6).long()], torch.arange(6))
    assert links.scorer.asked == asked


def test_a_full_cache_starts_anew():
    links, _ = random_links(7, 20, cache_bytes=12 * 20 * 8)
    links.log_rows(torch.arange(20), 0)
    batch, scorer = QueryBatch.of("2p", torch.tensor([[15, 1, 2]])), EntityScorer(links, 3)
    explain_answers(scorer, batch, torch.tensor([5]))
    before = links.rows_computed
    explain_answers(scorer, batch, torch.tensor([6]))
    assert links.rows_computed == before


def test_of_equal_derivations_the_first_entities_are_taken():
    links = LinkProbabilities(torch.zeros(0, 3).long(), 40, 1, TableScorer(torch.zeros(2, 40, 40)))
    batch = QueryBatch.of("2p", torch.tensor([[0, 0, 0]]))
    (found,) = explain_answers(EntityScorer(links, 30), batch, torch.tensor([7]), 9)
    assert [one.branches[0].entity for one in found] == list(range(9))


def test_what_has_no_derivation_and_bad_arguments():
    scorer = EntityScorer(LinkProbabilities(torch.tensor([[0, 0, 1]]), 3, 1))
    batch = QueryBatch.of("1p", torch.tensor([[0, 0], [2, 0]]))
    assert [len(own) for own in explain_answers(scorer, batch, torch.tensor([1, 1]), 3)] == [1, 0]
    with pytest.raises(ValueError, match="an answer for each of 2 queries"):
        explain_answers(scorer, batch, torch.tensor([1]))
    with pytest.raises(ValueError, match="entity ids go from 0 to 2"):
        explain_answers(scorer, QueryBatch.of("1p", torch.tensor([[3, 0]])), torch.tensor([1]))
    with pytest.raises(ValueError, match="answer ids from 0 to 2"):
        explain_answers(scorer, batch, torch.tensor([1, 3]))
    with pytest.raises(ValueError, match="'num_derivations' must be an integer of at least 1"):
        explain_answers(scorer, batch, torch.tensor([1, 1]), 0)
