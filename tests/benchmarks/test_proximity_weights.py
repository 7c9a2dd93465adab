import pytest
import torch
from benchmarks import proximity_weights
from benchmarks.proximity_weights import HiddenQueries, fit_weights, score_hidden

from sheafprop.inductive.episode_scorer import EpisodeScorer
from sheafprop.inductive.proximity_scorer import LogProximity, ProximityScorer, ProximitySettings
from tests.inductive.episode_cases import random_triples, small_model

WALK = ProximitySettings(teleport=0.3, num_iterations=7)


def drawn_queries(weights, count=4000, tau=1.0, seed=0):
    """Answers drawn from the softmax of tau (f + weight g), some candidates excluded."""
    generator = torch.Generator().manual_seed(seed)
    score, near = torch.randn(2, count, 12, generator=generator)
    query = torch.randint(len(weights), (count,), generator=generator)
    score[::3, 5] = -torch.inf
    logits = tau * (score + torch.tensor(weights)[query].unsqueeze(1) * near)
    answer = torch.multinomial(logits.softmax(1), 1, generator=generator).flatten()
    return HiddenQueries(score, near, query, answer, torch.arange(count))


@pytest.mark.parametrize("tau", [1.0, 0.4])
def test_the_weights_that_drew_the_answers_are_found(tau):
    drawn = drawn_queries([0.5, 2.0, 1.0], tau=tau)
    found = fit_weights([drawn], 4, prior=1.0)
    torch.testing.assert_close(found[:3], torch.tensor([0.5, 2.0, 1.0]), rtol=0.25, atol=0)
    assert min(found[:3]) < found[3] < max(found[:3])  # nothing was asked of it
    (common,) = set(fit_weights([drawn], 4, prior=0).tolist())
    assert 0.6 < common < 1.6


@pytest.mark.parametrize("prior", [0.0, 0.3])
def test_the_weights_are_stationary(prior):
    """By finite differences of the objective as it is written down, in double precision."""
    parts = [drawn_queries([0.3, 1.2], count=90, seed=s) for s in (0, 1)]

    def objective(log_tau, log_lambda, own):
        total, hidden = 0.0, torch.cat([part.triple for part in parts])
        share = len(torch.unique(hidden)) / len(hidden) * 2
        for part in parts:
            for f, g, q, v in zip(part.score, part.near, part.query, part.answer, strict=True):
                weight = (log_lambda + prior * own[q]).exp()
                terms = (log_tau.exp() * f.double() + weight * g.double()).log_softmax(0)
                total = total - share * terms[v]
        return total + own.square().sum() / 2

    found = fit_weights(parts, 2, prior=prior).double()
    # What is found has no scale: the best one along it, then every direction is flat.
    x = torch.tensor([0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    if prior > 0:
        half = (found[0] / found[1]).log() / prior / 2
        middle = found.log().mean()
        x[2], x[3], x[1] = half, -half, middle
    else:
        x[1] = found[0].log()
    shift = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    moves = [x + t * shift for t in torch.linspace(-3, 1, 200, dtype=torch.float64)]
    x = min(moves, key=lambda y: float(objective(y[0], y[1], y[2:])))
    free = [1, 2, 3] if prior > 0 else [1]
    for i in free:
        step = torch.zeros(4, dtype=torch.float64)
        step[i] = 1e-4
        values = [float(objective(y[0], y[1], y[2:])) for y in (x + step, x, x - step)]
        slope, bend = (values[0] - values[2]) / 2e-4, (values[0] + values[2] - 2 * values[1]) / 1e-8
        assert abs(slope / bend) < 0.03  # a Newton step is as small as the grid of the scale


def test_a_triple_counts_once_however_often_it_was_hidden():
    part = drawn_queries([0.3, 1.2], count=60)
    torch.testing.assert_close(
        fit_weights([part], 2), fit_weights([part, part, part], 2), rtol=1e-3, atol=1e-4
    )


def test_hidden_triples_are_neither_diffused_over_nor_near(monkeypatch):
    triples, seen = random_triples(), []
    model = small_model("rotate", torch.float32)

    class Spy(EpisodeScorer):
        def __init__(self, model, observed, *rest):
            seen.append(observed)
            super().__init__(model, observed, *rest)

    near = LogProximity.of_settings
    monkeypatch.setattr(proximity_weights, "EpisodeScorer", Spy)
    monkeypatch.setattr(
        proximity_weights.LogProximity,
        "of_settings",
        lambda settings, observed, n, walk: (
            seen.append(observed),
            near(settings, observed, n, walk),
        )[1],
    )
    found = score_hidden(model, triples, WALK, share=0.3, seed=2)
    hidden = {tuple(row) for row in triples[found.triple].tolist()}
    assert len(hidden) == round(0.3 * len(triples))
    assert len(seen) == 2
    for observed in seen:
        rows = {tuple(row) for row in observed.tolist()}
        assert not rows & hidden
        assert rows | hidden == {tuple(row) for row in triples.tolist()}


def test_scores_are_those_of_the_scorers():
    triples = random_triples(count=40)
    model = small_model("rotate", torch.float32)
    found = score_hidden(model, triples, WALK, share=0.3, seed=4)
    half = len(found.answer) // 2
    head, relation, tail = triples[found.triple[:half]].unbind(1)
    assert torch.equal(found.answer, torch.cat([tail, head]))
    assert torch.equal(found.query, torch.cat([relation, relation + 3]))
    observed = triples[~torch.isin(torch.arange(len(triples)), found.triple)]
    scorer = EpisodeScorer(model, observed, [str(i) for i in range(9)], 4)
    both = ProximityScorer(scorer, LogProximity.of_settings(WALK, observed, 9), 0.8)
    expected = torch.cat([both.score_tails(head, relation), both.score_heads(relation, tail)])
    total = found.score + 0.8 * found.near
    known = {tuple(row) for row in triples.tolist()}
    for row in range(2 * half):
        h, r, t = triples[found.triple[row]].tolist()
        for v in range(9):
            triple = (h, r, v) if row < half else (v, r, t)
            if v != found.answer[row] and triple in known:
                assert total[row, v] == -torch.inf
            else:
                torch.testing.assert_close(total[row, v], expected[row, v])


def test_large_graphs_ask_fewer_queries(monkeypatch):
    triples, model = random_triples(), small_model("rotate", torch.float32)
    monkeypatch.setattr(proximity_weights, "_MOST", 2 * 9 * 3)
    assert 0 < len(score_hidden(model, triples, WALK, share=0.5).answer) <= 6
