import math

import numpy as np
import pytest
import torch

from sheafprop.errors import DataError
from sheafprop.query import STRUCTURES, EntityScorer, LinkProbabilities, QueryBatch, QueryShape
from sheafprop.query.entity_scorer import QueryTruth
from sheafprop.query.entity_search import EntitySearch, check_bounded, waiting_tables
from tests.query.entity_cases import TableScorer, random_links

_HOP = STRUCTURES["1p"]


def test_a_beam_holds_the_best_and_knows_the_next():
    links, _ = random_links(0, 5)
    truth = torch.tensor([[0.1, 0.9, 0, 0.5, 0.5]], dtype=torch.float64).log()
    beam = EntitySearch(links, 2).beam(truth)
    assert sorted(beam.entity[0].tolist()) == [1, 3]
    assert beam.following.exp().item() == pytest.approx(0.5)
    assert EntitySearch(links, 4).beam(truth).following.item() == -math.inf
    anchors = EntitySearch(links, 2).anchor_beam(torch.tensor([3, 0]))
    assert anchors.entity.tolist() == [[3], [0]]
    assert anchors.value.tolist() == [[0], [0]]


def test_bounds_of_cut_interiors():
    """One of two equally good entities between is cut: what it leads to may be underrated."""
    facts = torch.tensor([[0, 0, 1], [0, 0, 2], [1, 1, 3], [2, 1, 4]])
    search = EntitySearch(LinkProbabilities(facts, 5, 2), 1)
    slots = torch.tensor([[0, 0, 1]])
    truth = search.truth(STRUCTURES["2p"], slots)
    assert truth.value.exp().tolist() == [[0, 0, 0, 1, 0]]
    assert (truth.limit.exp().item(), truth.share.item()) == (1, 1)
    negated = QueryShape("and", (_HOP, QueryShape("not", (STRUCTURES["2p"],))))
    truth = search.truth(negated, torch.tensor([[2, 1, 0, 0, 1]]))
    assert truth.value.exp().tolist() == [[0, 0, 0, 0, 1]]
    assert (truth.limit.item(), truth.share.item()) == (-math.inf, 0)
    # Joined with what does not lead there, the cut entity changes nothing.
    truth = search.truth(STRUCTURES["pi"], torch.tensor([[0, 0, 1, 1, 1]]))
    assert (truth.limit.item(), truth.share.item()) == (-math.inf, 1)


def _not(shape):
    return QueryShape("not", (shape,))


_CUT = _not(STRUCTURES["2p"])


def circle():
    """Every entity leads to the next one with probability .5, and to those after it with .3, .2."""
    table = torch.tensor([0.0, 0.5, 0.3, 0.2]).log()
    rows = torch.stack([table.roll(i) for i in range(4)]).expand(2, -1, -1)
    return LinkProbabilities(torch.zeros(0, 3).long(), 4, 1, TableScorer(rows))


def test_the_last_answer_is_uncertain_where_the_next_may_be_better():
    batch = QueryBatch(QueryShape("and", (_HOP, _CUT)), torch.zeros(1, 5).long())
    (found,) = EntityScorer(circle(), 1).answer(batch, 2)
    # The share is .7, and the third answer has a truth of .2 * .85.
    assert [answer.truth for answer in found] == pytest.approx([0.5, 0.3 * 0.75])
    assert [answer.certain for answer in found] == [True, False]


@pytest.mark.parametrize(
    ("limit", "share", "truths", "certain"),
    [
        (0, 1, [0.9, 0.9, 0.5], 3),
        (0.6, 1, [0.9, 0.7, 0.6, 0.5], 2),
        (0, 0.5, [0.9, 0.4, 0.3], 1),
        (0.85, 0.9, [0.9, 0.1], 0),
        (0.5, 0.9, [0.9, 0.1], 1),
        (0, 0, [0.9, 0.1], 0),
        (0, 1, [0.9, 0.0], 1),
    ],
)
def test_answers_are_certain_as_long_as_none_below_may_be_above(limit, share, truths, certain):
    bounds = [torch.tensor([float(x)]) for x in (limit, share)]
    truth = QueryTruth(torch.tensor([0]), torch.empty(1, 0), bounds[0].log(), bounds[1])
    assert truth.certain(torch.tensor([truths]).log()).tolist() == [certain]


@pytest.mark.parametrize(
    ("shape", "limit", "share"),
    [
        (STRUCTURES["2p"], 0.3, 1),
        (_CUT, 0, 0.7),
        (_not(_CUT), 1, 1),
        (_not(_not(_CUT)), 0, 0),
        (QueryShape("and", (_HOP, _CUT, _CUT)), 0, 0.7**2),
        (QueryShape("and", (_HOP, QueryShape("or", (_HOP, _CUT)))), 0, 0.7),
        (QueryShape("and", (_HOP, QueryShape("or", (_CUT, _HOP)))), 0, 0.7),
        (QueryShape("via", (QueryShape("and", (_HOP, _CUT)),)), 0.3 * 0.75, 0.7),
    ],
    ids=str,
)
def test_bounds_of_negations(shape, limit, share):
    search = EntitySearch(circle(), 1)
    truth = search.truth(shape, torch.zeros(1, shape.num_slots).long())
    found = truth.limit.exp().item(), truth.share.item()
    assert found == (pytest.approx(limit), pytest.approx(share))


def test_nothing_is_asked_of_what_is_impossible():
    links, _ = random_links(0, 9, cache_bytes=0)
    links.outside = torch.arange(9) != 4
    links.facts = LinkProbabilities(torch.zeros(0, 3).long(), 9, 2).facts
    EntitySearch(links, 9).truth(STRUCTURES["2p"], torch.tensor([[2, 0, 1]]))
    assert links.scorer.asked == [(0, 2), (1, 4)]


def test_tables_that_wait():
    assert waiting_tables(_HOP) == 2
    assert waiting_tables(STRUCTURES["3p"]) == 2
    assert waiting_tables(STRUCTURES["pi"]) == 3
    assert waiting_tables(STRUCTURES["ip"]) == 4
    assert waiting_tables(STRUCTURES["3i"]) == 6
    assert waiting_tables(STRUCTURES["3in"]) == 4
    three = QueryShape("and", (_HOP, STRUCTURES["2p"], STRUCTURES["ip"]))
    assert waiting_tables(three) == 2 + 4


def test_branches_of_one_shape_share_their_rows():
    links, p = random_links(0, 9, cache_bytes=0)
    slots = torch.tensor([[2, 0, 3, 0, 2, 0], [3, 0, 2, 1, 5, 0]])
    truth = EntitySearch(links, 9).truth(STRUCTURES["3i"], slots)
    wanted = p[0, 2] * p[0, 3] * p[0, 2], p[0, 3] * p[1, 2] * p[0, 5]
    torch.testing.assert_close(truth.value.exp(), torch.tensor(np.stack(wanted)))
    assert sorted(links.scorer.asked) == [(0, 2), (0, 3), (0, 5), (1, 2)]


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (QueryShape("not", (_HOP,)), r"answer a negation, not\(...\)"),
        (QueryShape("or", (_HOP, QueryShape("not", (_HOP,)))), "answer an 'or' with a negated"),
        (QueryShape("and", (QueryShape("not", (_HOP,)),) * 2), "an 'and' of negations only"),
        (QueryShape("via", (QueryShape("not", (_HOP,)),)), "walked from all entities but some"),
        (
            QueryShape("and", (_HOP, QueryShape("via", (QueryShape("not", (_HOP,)),)))),
            "walked from all entities but some, as a negation",
        ),
    ],
)
def test_everything_but_is_refused_by_name(shape, problem):
    links, _ = random_links(0)
    with pytest.raises(DataError, match=problem):
        EntityScorer(links).score(QueryBatch(shape, torch.zeros(1, shape.num_slots).long()))
    with pytest.raises(DataError, match=problem):
        check_bounded(shape)
    with pytest.raises(DataError, match="all entities but some"):
        check_bounded(_not(_not(shape)))


def test_what_is_not_everything_but():
    for shape in (_CUT, QueryShape("or", (_HOP, _CUT)), QueryShape("and", (_CUT, _CUT))):
        check_bounded(_not(shape))
        check_bounded(QueryShape("and", (_HOP, shape)))
        check_bounded(QueryShape("and", (shape, _HOP)))
