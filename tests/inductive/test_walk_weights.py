import math

import pytest
import torch

from sheafprop.inductive import walk_weights
from sheafprop.inductive.episode_scorer import hide_triples
from sheafprop.inductive.proximity_scorer import relations_with_loops
from sheafprop.inductive.walk_weights import BATCH_SIZE, HIDDEN_SHARE, MOST_NUMBERS, walk_loss
from sheafprop.ranking import TripleFilter
from tests.inductive.episode_cases import random_triples
from tests.nn.walk_cases import transition_matrix, walk

SIZE, RELATIONS = 9, 3


def make_case(dtype=torch.float64):
    """Triples of which many share a query, with loops at relation 2 alone, and weights."""
    triples = random_triples(SIZE, RELATIONS, 60)
    loops = torch.tensor([[entity, 2, entity] for entity in (1, 4, 7)])
    triples = torch.unique(torch.cat([triples[triples[:, 0] != triples[:, 2]], loops]), dim=0)
    generator = torch.Generator().manual_seed(7)
    shape = (2 * RELATIONS, RELATIONS)
    return triples, torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def loss_of(log_weight, triples, seed=0, known=None, num_nodes=SIZE):
    known = TripleFilter(triples if known is None else known, num_nodes, RELATIONS)
    loops = relations_with_loops(triples, RELATIONS)
    generator = torch.Generator().manual_seed(seed)
    return walk_loss(log_weight, triples, num_nodes, known, loops, generator)


def loss_by_hand(log_weight, triples, observed, hidden):
    """One query and one candidate after the other; counts what is excluded, by its reason."""
    every = {tuple(t) for t in triples.tolist()}
    loops = {r for h, r, t in every if h == t}
    heads, kinds, tails = torch.tensor(observed).T
    edges = torch.stack([heads, tails])
    losses, excluded = [], {"answer": 0, "own": 0, "own of a loop": 0}
    for h, r, t in hidden:
        for side in (0, 1):
            own, answer = (h, t) if side == 0 else (t, h)
            weight = log_weight[r + side * RELATIONS].exp()[kinds]
            near = walk(transition_matrix(edges, SIZE, weight))[own]
            score = [math.log(float(p) + 1e-6) for p in near]
            kept = []
            for v in range(SIZE):
                others = (h, r, v) if side == 0 else (v, r, t)
                if v != answer and others in every:
                    excluded["answer"] += 1
                elif v == own and r not in loops:
                    excluded["own"] += 1
                else:
                    excluded["own of a loop"] += v == own
                    kept.append(score[v])
            losses.append(math.log(sum(map(math.exp, kept))) - score[answer])
    return sum(losses) / len(losses), excluded


def hidden_of(triples, seed):
    observed, hidden = hide_triples(triples, 0.25, torch.Generator().manual_seed(seed))
    return observed.tolist(), hidden.tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_is_that_of_hidden_triples_ranked_by_walks_on_the_others(seed):
    triples, log_weight = make_case()
    observed, hidden = hidden_of(triples, seed)
    expected, excluded = loss_by_hand(log_weight, triples, observed, hidden)
    assert min(excluded.values()) > 0  # every reason to exclude an entity occurs
    assert float(loss_of(log_weight, triples, seed)) == pytest.approx(expected, rel=1e-10)
    # What the comparison is worth: each of these walks has another loss.
    for other in (observed + hidden, hidden):
        leaky, _ = loss_by_hand(log_weight, triples, other, hidden)
        assert abs(leaky - expected) > 1e-3
    for rows in (log_weight.roll(RELATIONS, 0), 0 * log_weight):
        assert abs(loss_by_hand(rows, triples, observed, hidden)[0] - expected) > 1e-3


def test_hidden_triples_are_not_walked_over(monkeypatch):
    triples, log_weight = make_case()
    seen, ranked = [], []
    original = walk_weights.RelationProximity

    class Spy(original):
        def __init__(self, edge_index, edge_type, *rest):
            seen.append(torch.stack([edge_index[0], edge_type, edge_index[1]], 1))
            super().__init__(edge_index, edge_type, *rest)

        def __call__(self, sources, weight):
            ranked.append(sources)
            return super().__call__(sources, weight)

    monkeypatch.setattr(walk_weights, "RelationProximity", Spy)
    loss_of(log_weight, triples)
    observed = {tuple(t) for t in seen[0].tolist()}
    every = {tuple(t) for t in triples.tolist()}
    hidden = every - observed
    assert observed < every
    assert len(hidden) == round(0.25 * len(triples))
    assert sorted(ranked[0].tolist()) == sorted(h for h, _, _ in hidden)
    assert sorted(ranked[1].tolist()) == sorted(t for _, _, t in hidden)


def test_gradients_are_finite_differences():
    triples, log_weight = make_case()
    log_weight.requires_grad_()
    assert torch.autograd.gradcheck(lambda w: loss_of(w, triples), log_weight, fast_mode=True)


def test_a_common_factor_of_weights_changes_nothing_however_large():
    triples, log_weight = make_case(torch.float32)
    shift = torch.tensor([0.0, 300.0, -300.0, 90.0, -90.0, 1.0]).unsqueeze(1)
    found = loss_of(log_weight + shift, triples)
    torch.testing.assert_close(found, loss_of(log_weight, triples), rtol=1e-4, atol=1e-5)


def test_known_triples_are_those_of_the_filter():
    """Further known answers are not ranked, and neither hidden nor walked over."""
    triples, log_weight = make_case()
    every = torch.cartesian_prod(torch.arange(SIZE), torch.arange(RELATIONS), torch.arange(SIZE))
    # Every entity is a known answer, so nothing is left to confuse the true one with.
    found = loss_of(log_weight, triples, known=every)
    assert float(found) == pytest.approx(0.0, abs=1e-12)


def test_queries_along_a_relation_without_triples_keep_their_weights():
    triples, log_weight = make_case()
    triples = triples[triples[:, 1] != 1]
    log_weight.requires_grad_()
    sum(loss_of(log_weight, triples, seed) for seed in range(3)).backward()
    changed = log_weight.grad.abs().sum(1) > 0
    assert changed.tolist() == [True, False, True, True, False, True]
    assert float(log_weight.grad[:, 1].abs().max()) < 1e-12


@pytest.mark.parametrize(
    "triples", [[[0, 0, 1]], [[0, 0, 1], [1, 2, 4]], [[3, 1, 3]], [[3, 1, 3], [4, 1, 4]]]
)
def test_very_few_triples_and_loops_alone_have_a_loss(triples):
    log_weight = make_case(torch.float32)[1].requires_grad_()
    loss = loss_of(log_weight, torch.tensor(triples))
    loss.backward()
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(log_weight.grad).all())


def test_depends_on_the_generator_alone():
    triples, log_weight = make_case()
    assert loss_of(log_weight, triples) == loss_of(log_weight, triples)
    assert loss_of(log_weight, triples) != loss_of(log_weight, triples, seed=1)


def test_a_step_ranks_some_of_many_hidden_triples(monkeypatch):
    assert (HIDDEN_SHARE, BATCH_SIZE, MOST_NUMBERS) == (0.25, 200, 2**28)
    triples, log_weight = random_triples(60, RELATIONS, 1200), make_case()[1]
    ranked = []
    original = walk_weights.rank_hidden
    monkeypatch.setattr(walk_weights, "rank_hidden", lambda *a: ranked.append(a[1]) or original(*a))
    loss_of(log_weight, triples, num_nodes=60)
    assert len(triples) > 1000
    assert len(ranked[0]) == 200


@pytest.mark.parametrize("most", [1, 2 * SIZE * 3 * 20 * 4])
def test_few_walks_at_a_time_have_the_same_loss_and_derivative(monkeypatch, most):
    triples, log_weight = make_case()
    log_weight.requires_grad_()
    ranked = []
    original = walk_weights.rank_hidden

    def spy(score, part, *rest):
        ranked.append(part)
        return original(score, part, *rest)

    monkeypatch.setattr(walk_weights, "rank_hidden", spy)
    whole = loss_of(log_weight, triples)
    (expected,) = torch.autograd.grad(whole, log_weight)
    assert len(ranked) == 1
    monkeypatch.setattr(walk_weights, "MOST_NUMBERS", most)
    found = loss_of(log_weight, triples)
    assert torch.equal(torch.cat(ranked[1:]), ranked[0])
    sizes = {len(part) for part in ranked[1:]}
    assert len(ranked) > 2
    assert max(sizes) == max(1, math.ceil(len(ranked[0]) / (len(ranked) - 1)))
    assert max(sizes) <= max(1, most // (2 * SIZE * 3 * 20))
    torch.testing.assert_close(found, whole)
    torch.testing.assert_close(torch.autograd.grad(3 * found, log_weight)[0], 3 * expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_no_derivative_is_taken(monkeypatch, mode):
    triples, log_weight = make_case()
    expected = loss_of(log_weight, triples)
    monkeypatch.setattr(torch.autograd, "grad", None)
    monkeypatch.setattr(walk_weights, "MOST_NUMBERS", 1)
    with mode():
        torch.testing.assert_close(loss_of(log_weight.requires_grad_(), triples), expected)
