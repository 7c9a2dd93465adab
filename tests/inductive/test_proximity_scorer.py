import math
from dataclasses import replace

import pytest
import torch

from sheafprop.inductive.answer_counts import AnswerCounts
from sheafprop.inductive.episode_scorer import EpisodeScorer, score_spread
from sheafprop.inductive.proximity_scorer import (
    LogProximity,
    ProximityScorer,
    ProximitySettings,
    add_proximity,
    proximity_is_cheap,
    rank_own_last_,
    relations_with_loops,
)
from sheafprop.nn import proximity
from sheafprop.ranking import EdgeTypeHeuristic

TRIPLES = torch.tensor([[0, 0, 1], [1, 1, 2], [3, 0, 2], [4, 1, 4], [2, 0, 5]])


class Fixed:
    """Scores that depend on query and side in a way that is easy to compute again."""

    def __init__(self, num_nodes):
        self.table = torch.linspace(-1, 1, 2 * num_nodes * num_nodes).view(2, num_nodes, num_nodes)

    def score_tails(self, head_index, rel_type):
        return self.table[0, head_index] + rel_type.unsqueeze(1)

    def score_heads(self, rel_type, tail_index):
        return self.table[1, tail_index] - rel_type.unsqueeze(1)


@pytest.mark.parametrize("kept", [True, False])
def test_adds_the_logarithm_of_the_rows(kept, monkeypatch):
    if not kept:
        monkeypatch.setattr("sheafprop.inductive.proximity_scorer._KEPT", 1)
    near, scorer = LogProximity(TRIPLES, 7), Fixed(7)
    expected = torch.log(proximity(TRIPLES[:, [0, 2]].T, 7) + 1e-6)
    both = ProximityScorer(scorer, near, 0.7)
    head, relation = torch.tensor([0, 6, 0, 4]), torch.tensor([1, 0, 1, 1])
    for _ in range(2):  # the second time from what is kept
        torch.testing.assert_close(
            both.score_tails(head, relation),
            scorer.score_tails(head, relation) + 0.7 * expected[head],
        )
        torch.testing.assert_close(
            both.score_heads(relation, head),
            scorer.score_heads(relation, head) + 0.7 * expected[head],
        )
    alone = ProximityScorer(None, near).score_tails(head, relation)
    torch.testing.assert_close(alone, expected[head])


def peers_by_hand(triples, num_nodes, entity, relation, side, floor):
    """The proximity of peers, one candidate and one observed triple after the other."""
    near = proximity(triples[:, [0, 2]].T, num_nodes)
    degree = [0] * num_nodes
    for head, _, tail in triples.tolist():
        if head != tail:
            degree[head], degree[tail] = degree[head] + 1, degree[tail] + 1
    rows = torch.full((len(entity), num_nodes), floor)
    for row, (own, wanted) in enumerate(zip(entity.tolist(), relation.tolist(), strict=True)):
        for head, kind, tail in triples.tolist():
            peer, answer = (head, tail) if side == "tail" else (tail, head)
            if kind == wanted and peer != own:
                rows[row, answer] += near[own, peer] / max(degree[peer], 1)
    return rows.log()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("side", ["tail", "head"])
def test_the_proximity_of_peers_is_the_sum_over_observed_triples(side, kept, monkeypatch):
    if not kept:
        monkeypatch.setattr("sheafprop.inductive.proximity_scorer._KEPT", 1)
    # Parallel edges, a loop, a triple of a loop's relation, an entity without triples (7).
    more = torch.tensor([[5, 0, 2], [5, 1, 2], [0, 1, 4], [3, 2, 0], [6, 0, 1]])
    triples = torch.cat([TRIPLES, more])
    near, scorer = LogProximity(triples, 8), Fixed(8)
    entity = torch.tensor([0, 2, 7, 4, 0, 5, 3])
    relation = torch.tensor([0, 1, 0, 1, 2, 0, 0])
    expected = peers_by_hand(triples, 8, entity, relation, side, 1e-5)
    torch.testing.assert_close(near.peers(entity, relation, side), expected)
    both = ProximityScorer(scorer, near, 0.7, peers=0.3)
    plain = ProximityScorer(scorer, near, 0.7)
    if side == "tail":
        found, without = (one.score_tails(entity, relation) for one in (both, plain))
    else:
        found, without = (one.score_heads(relation, entity) for one in (both, plain))
    torch.testing.assert_close(found, without + 0.7 * 0.3 * expected)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_the_frequency_of_answers_is_added_with_its_weight(weight):
    near, scorer, answers = LogProximity(TRIPLES, 7), Fixed(7), AnswerCounts(TRIPLES, 7, 2)
    entity, relation = torch.tensor([0, 6, 2, 0]), torch.tensor([1, 0, 0, 1])
    plain = ProximityScorer(scorer, near, weight)
    both = ProximityScorer(scorer, near, weight, answers=answers, frequency=0.3)
    for side in ("tail", "head"):
        if side == "tail":
            found, without = (one.score_tails(entity, relation) for one in (both, plain))
        else:
            found, without = (one.score_heads(relation, entity) for one in (both, plain))
        expected = 0.3 * answers(relation, side)
        assert float(expected.abs().max()) > 0.1
        torch.testing.assert_close(found, without + expected)


@pytest.mark.parametrize("loops", [True, False])
def test_the_query_entity_is_the_last_one_whatever_is_added(loops):
    near, answers = LogProximity(TRIPLES, 7), AnswerCounts(TRIPLES, 7, 2)
    may_loop = torch.tensor([loops, loops])
    more = dict(answers=answers, frequency=5.0, may_loop=may_loop)
    scores = ProximityScorer(Fixed(7), near, 0.5, **more).score_tails(
        torch.tensor([1, 2]), torch.tensor([0, 0])
    )
    assert bool((scores.argmin(1) == torch.tensor([1, 2])).all()) is not loops


def test_weights_of_vectors_are_in_units_of_the_spread_and_none_beside_episodes():
    near, scorer = LogProximity(TRIPLES, 7), Fixed(7)
    settings = ProximitySettings(weight=0.9, share=0.2, frequency=0.6, own_last=False)
    found = add_proximity(scorer, near, settings, TRIPLES, TRIPLES, 2)
    spread = score_spread(scorer, TRIPLES)
    assert spread > 0.01
    assert (found.weight, found.frequency) == (0.2 * spread, 0.6 * spread)
    entity, relation = torch.tensor([0, 6]), torch.tensor([1, 0])
    expected = scorer.score_tails(entity, relation) + spread * (
        0.2 * near(entity, relation, "tail") + 0.6 * AnswerCounts(TRIPLES, 7, 2)(relation, "tail")
    )
    torch.testing.assert_close(found.score_tails(entity, relation), expected)
    none = add_proximity(scorer, near, replace(settings, frequency=0.0), TRIPLES, TRIPLES, 2)
    assert none.answers is None
    episodes = object.__new__(EpisodeScorer)
    beside = add_proximity(episodes, near, settings, TRIPLES, TRIPLES, 2)
    assert (beside.weight, beside.frequency, beside.answers) == (0.9, 0.0, None)
    empty = add_proximity(scorer, near, settings, TRIPLES[:0], TRIPLES, 2)
    assert (empty.weight, empty.frequency) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["weight", "share", "peers", "frequency"])
@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_weights_are_finite_and_not_negative(name, value):
    with pytest.raises(ValueError, match=f"'{name}' must be finite and not negative"):
        ProximitySettings(**{name: value})


def test_an_observed_triple_is_no_peer_of_its_own_query():
    near = LogProximity(TRIPLES, 7)
    rows = near.peers(torch.tensor([0, 3]), torch.tensor([0, 0]), "tail")
    assert rows[0, 1] == rows.min()  # (0, 0, 1) is the only triple with tail 1
    assert rows[1, 1] > rows.min()


LOG_WEIGHT = torch.tensor([[0.5, -1.0], [2.0, 1.0], [-3.0, 0.0], [0.3, 0.9]])
QUERIES = torch.tensor([[0, 0], [6, 1], [2, 1], [0, 0], [4, 1], [0, 1], [3, 0]])


def rows_by_query(triples, num_nodes, entity, relation, side, log_weight=LOG_WEIGHT):
    """Plain proximity on a graph whose edges have the weights of one query, query by query."""
    edges, kind = triples[:, [0, 2]].T, triples[:, 1]
    rows = []
    for one, q in zip(entity, relation.tolist(), strict=True):
        weight = log_weight[q if side == "tail" else q + len(log_weight) // 2].exp()[kind]
        rows.append(proximity(edges, num_nodes, one[None], edge_weight=weight)[0])
    return torch.stack(rows)


@pytest.mark.parametrize("walks", [2, 64])
@pytest.mark.parametrize("side", ["tail", "head"])
def test_with_weights_the_walk_is_that_of_the_query(side, walks, monkeypatch):
    monkeypatch.setattr("sheafprop.inductive.proximity_scorer._WALKS", walks)
    near, scorer = LogProximity(TRIPLES, 7, log_weight=LOG_WEIGHT), Fixed(7)
    entity, relation = QUERIES.unbind(1)
    expected = rows_by_query(TRIPLES, 7, entity, relation, side)
    plain = proximity(TRIPLES[:, [0, 2]].T, 7)[entity]
    assert float((expected - plain).abs().max()) > 0.05
    torch.testing.assert_close(near.probabilities(entity, relation, side), expected)
    torch.testing.assert_close(near(entity, relation, side), torch.log(expected + 1e-6))
    both = ProximityScorer(scorer, near, 0.7)
    if side == "tail":
        found, own = both.score_tails(entity, relation), scorer.score_tails(entity, relation)
    else:
        found, own = both.score_heads(relation, entity), scorer.score_heads(relation, entity)
    torch.testing.assert_close(found, own + 0.7 * torch.log(expected + 1e-6))


def test_peers_are_near_by_the_walk_of_the_query_which_is_computed_once():
    more = torch.tensor([[5, 0, 2], [5, 1, 2], [0, 1, 4], [3, 0, 1], [6, 0, 1]])
    triples = torch.cat([TRIPLES, more])
    near = LogProximity(triples, 7, log_weight=LOG_WEIGHT)
    entity, relation = QUERIES.unbind(1)
    rows = rows_by_query(triples, 7, entity, relation, "head")
    degree = triples[triples[:, 0] != triples[:, 2]][:, [0, 2]].flatten().bincount(minlength=7)
    expected = torch.full((len(entity), 7), 1e-5)
    for number, (own, wanted) in enumerate(QUERIES.tolist()):
        for head, kind, tail in triples.tolist():
            if kind == wanted and tail != own:
                expected[number, head] += rows[number, tail] / degree[tail].clamp_min(1)
    torch.testing.assert_close(near.peers(entity, relation, "head"), expected.log())
    calls = []
    original = near.probabilities
    near.probabilities = lambda *given: calls.append(given) or original(*given)
    found = ProximityScorer(None, near, 0.7, peers=0.3).score_heads(relation, entity)
    torch.testing.assert_close(found, 0.7 * (torch.log(rows + 1e-6) + 0.3 * expected.log()))
    assert len(calls) == 1


@pytest.mark.parametrize("size", [0.0, 200.0, -200.0])
def test_equal_weights_of_any_size_give_the_plain_rows(size):
    entity, relation = QUERIES.unbind(1)
    near = LogProximity(TRIPLES, 7, log_weight=torch.full((4, 2), size))
    plain = LogProximity(TRIPLES, 7)
    torch.testing.assert_close(near(entity, relation, "head"), plain(entity, relation, "head"))


def test_walks_by_query_have_the_teleport_and_the_steps_of_their_settings():
    settings = ProximitySettings(teleport=0.4, num_iterations=3)
    near = LogProximity.of_settings(settings, TRIPLES, 7, LOG_WEIGHT)
    weight = LOG_WEIGHT[2].exp()[TRIPLES[:, 1]]
    edges, one = TRIPLES[:, [0, 2]].T, torch.tensor([2])
    expected = proximity(edges, 7, one, edge_weight=weight, teleport=0.4, num_iterations=3)
    torch.testing.assert_close(near.probabilities(one, torch.tensor([0]), "head"), expected)


@pytest.mark.parametrize("triples", [TRIPLES[:0], TRIPLES[3:4]])
def test_walks_by_query_of_a_graph_without_edges_stay_where_they_are(triples):
    near = LogProximity(triples, 7, log_weight=LOG_WEIGHT)
    rows = near.probabilities(torch.tensor([4, 1]), torch.tensor([1, 0]), "tail")
    assert torch.equal(rows, torch.eye(7)[[4, 1]])
    assert near(*torch.empty(2, 0, dtype=torch.long), "tail").shape == (0, 7)


def test_rows_by_query_keep_no_gradient():
    near = LogProximity(TRIPLES, 7, log_weight=torch.nn.Parameter(LOG_WEIGHT.clone()))
    assert not near(torch.tensor([0]), torch.tensor([0]), "tail").requires_grad


@pytest.mark.parametrize("shape", [(4, 3), (3, 2), (2, 4), (4,)])
def test_refuses_weights_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"'log_weight' must have a row.*\[2R, R\] \(got \["):
        LogProximity(TRIPLES, 7, log_weight=torch.zeros(shape))


def test_the_limit_of_walks_by_query_is_refused():
    with pytest.raises(ValueError, match="need 'num_iterations'"):
        LogProximity(TRIPLES, 7, log_weight=LOG_WEIGHT, num_iterations=None)


def test_the_filter_goes_before_the_proximity_of_peers():
    heuristic = EdgeTypeHeuristic(TRIPLES, 7, 2)
    near = LogProximity(TRIPLES, 7)
    scorer = ProximityScorer(None, near, 2.0, peers=3.0, filtered_by=heuristic)
    scores = scorer.score_heads(torch.tensor([1]), torch.tensor([5]))[0]
    assert set(scores.topk(2).indices.tolist()) == {1, 4}


def test_a_weight_of_zero_leaves_the_scores_as_they_are():
    scorer = Fixed(7)
    both = ProximityScorer(scorer, LogProximity(TRIPLES, 7), 0.0)
    one = torch.tensor([1])
    assert torch.equal(both.score_tails(one, one), scorer.score_tails(one, one))


def test_the_own_entity_is_last_where_the_relation_has_no_loop():
    loops = relations_with_loops(TRIPLES, 3)
    assert loops.tolist() == [False, True, False]
    scorer = ProximityScorer(Fixed(7), LogProximity(TRIPLES, 7), 0.5, may_loop=loops)
    free = ProximityScorer(Fixed(7), LogProximity(TRIPLES, 7), 0.5)
    entity, relation = torch.tensor([0, 3, 6]), torch.tensor([0, 1, 2])
    for found, plain in (
        (scorer.score_tails(entity, relation), free.score_tails(entity, relation)),
        (scorer.score_heads(relation, entity), free.score_heads(relation, entity)),
    ):
        assert torch.equal(found[1], plain[1])  # relation 1 has a loop
        for row in (0, 2):
            own = int(entity[row])
            others = torch.arange(7) != own
            assert torch.equal(found[row, others], plain[row, others])
            assert found[row, own] < found[row, others].min()
            assert math.isfinite(found[row, own])


def test_the_filter_goes_before_proximity():
    heuristic = EdgeTypeHeuristic(TRIPLES, 7, 2)
    scorer = ProximityScorer(None, LogProximity(TRIPLES, 7), filtered_by=heuristic)
    scores = scorer.score_tails(torch.tensor([0]), torch.tensor([0]))[0]
    seen = {1, 2, 5}  # tails of relation 0
    assert set(scores.topk(3).indices.tolist()) == seen
    near = proximity(TRIPLES[:, [0, 2]].T, 7)[0]
    for group in (sorted(seen), sorted(set(range(7)) - seen)):
        assert scores[group].argsort().tolist() == near[group].argsort(stable=True).tolist()


def test_rank_own_last_changes_the_chosen_rows_alone():
    scores = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    rank_own_last_(scores, torch.tensor([0, 0]), torch.tensor([False, True]))
    assert scores.tolist() == [[3.0, 1.0, 2.0], [0.0, 1.0, 2.0]]


def test_spread_is_the_mean_standard_deviation_over_candidates():
    scorer = Fixed(7)
    rows = scorer.score_tails(TRIPLES[:, 0], TRIPLES[:, 1])
    assert score_spread(scorer, TRIPLES) == pytest.approx(float(rows.std(1).mean()))
    assert score_spread(scorer, TRIPLES, most=1) == pytest.approx(float(rows[0].std()))


def test_walks_are_cheap_up_to_a_number_of_products(monkeypatch):
    """Two directions of 5 edges, 3 steps, 3 entities: 90 products."""
    triples = torch.tensor([[0, 0, 1], [1, 1, 2], [0, 0, 2]])
    for most, cheap in ((90.0, True), (89.0, False)):
        monkeypatch.setattr("sheafprop.inductive.proximity_scorer._MOST_PRODUCTS", most)
        assert proximity_is_cheap(triples, 5, 3) is cheap
