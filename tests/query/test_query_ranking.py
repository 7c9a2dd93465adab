"""Hard answers of queries are ranked; the edge-type heuristic of queries."""

import numpy as np
import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.kge import build_model
from sheafprop.query import (
    AnswerSets,
    EdgeTypeScorer,
    EnergyScorer,
    GraphExecutor,
    QueryBatch,
    QueryRanking,
    easy_and_hard,
    evaluate_queries,
)
from sheafprop.ranking import RankCounts


class Given:
    """Scores that are given, in blocks of seven queries in any order."""

    def __init__(self, scores):
        self.scores = scores

    def blocks(self, batch, candidates=None, *, batch_size=None):
        order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
        for rows in order.split(7):
            yield rows, self.scores[rows][:, candidates]


def queries(count):
    return QueryBatch.of("1p", torch.zeros(count, 2).long())


def random_sets(rng, count, most, others=None):
    sets = [
        set(rng.choice(50, rng.integers(0, most), replace=False).tolist()) for _ in range(count)
    ]
    return [own - other for own, other in zip(sets, others or [set()] * count, strict=True)]


@pytest.mark.parametrize("few", [0, 96])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [4, 10**6])
def test_counts_are_those_of_a_loop(few, dtype, values, monkeypatch):
    """With few and with many hard answers in a row, ties among them and with the others."""
    monkeypatch.setattr("sheafprop.query.query_ranking._FEW", few)
    rng, count = np.random.default_rng(values), 60
    scores = torch.from_numpy(rng.integers(0, values, size=(count, 60))).to(dtype)
    scores[3, 7], scores[4, 9] = torch.inf, -torch.inf
    hard = random_sets(rng, count, 12)
    easy = random_sets(rng, count, 20, hard)
    easy[0] |= {55}  # no candidate
    candidates = torch.from_numpy(rng.permutation(50))
    result = evaluate_queries(
        Given(scores),
        queries(count),
        AnswerSets.from_sets(easy),
        AnswerSets.from_sets(hard),
        candidates,
    )
    rows, macro = [], []
    for query in range(count):
        free = [c for c in range(50) if c not in hard[query] | easy[query]]
        ranks = []
        for answer in sorted(hard[query]):
            better = sum(bool(scores[query, c] > scores[query, answer]) for c in free)
            ties = sum(bool(scores[query, c] == scores[query, answer]) for c in free)
            rows.append([query, better, ties, len(free)])
            ranks.append(1 + better + ties / 2)
        macro.append(ranks)
    counts = result.counts
    got = torch.stack([result.query, counts.better, counts.ties, counts.candidates], 1)
    assert got.tolist() == rows
    ranked = [np.array(ranks) for ranks in macro if ranks]
    metrics = result.metrics()
    assert metrics["mrr"] == pytest.approx(np.mean([np.mean(1 / r) for r in ranked]))
    assert metrics["hits@3"] == pytest.approx(np.mean([np.mean(r <= 3) for r in ranked]))
    assert metrics["queries"] == len(ranked)
    assert metrics["answers"] == len(rows)
    pooled = np.concatenate(ranked)
    assert result.metrics("micro")["mrr"] == pytest.approx(np.mean(1 / pooled))
    assert result.metrics("micro")["hits@10"] == pytest.approx(np.mean(pooled <= 10))


def test_realistic_ties_and_the_two_averages():
    # Query 0 has one hard answer at rank 1; query 1 has three, tied with the two other entities.
    scores = torch.tensor([[1.0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    result = evaluate_queries(
        Given(scores),
        queries(2),
        AnswerSets.from_sets([(), ()]),
        AnswerSets.from_sets([(0,), (0, 1, 2)]),
        torch.arange(5),
    )
    assert result.counts.ranks().tolist() == [1, 2, 2, 2]
    assert result.metrics()["mrr"] == pytest.approx((1 + 1 / 2) / 2)
    assert result.metrics("micro")["mrr"] == pytest.approx((1 + 3 / 2) / 4)
    assert repr(result) == "QueryRanking(2 queries, 4 answers, 5 candidates)"


@pytest.mark.parametrize("averaging", ["macro", "micro"])
def test_expected_figures_are_means_over_the_order_of_ties(averaging):
    counts = [(0, 40), (3, 0), (8, 6), (70, 2)]
    query = torch.tensor([0, 0, 0, 1])
    better, ties = torch.tensor(counts).T
    ranking = QueryRanking(RankCounts(better, ties, torch.full((4,), 90)), query, 2, 99)
    hits, reciprocal = [], []
    for b, e in counts:
        ranks = np.arange(b + 1, b + e + 2)
        hits.append(np.mean(ranks <= 10))
        reciprocal.append(np.mean(1 / ranks))
    metrics = ranking.metrics(averaging)
    for name, values in (("expected_hits@10", hits), ("expected_mrr", reciprocal)):
        mean = np.mean(values) if averaging == "micro" else (np.mean(values[:3]) + values[3]) / 2
        assert metrics[name] == pytest.approx(mean, rel=1e-9)


def test_a_model_is_evaluated_as_its_scores_say():
    g = torch.Generator().manual_seed(0)
    triples = torch.stack([torch.randint(n, (60,), generator=g) for n in (20, 3, 20)], 1)
    observed, full = (GraphExecutor(part, 20, 3) for part in (triples[:45], triples))
    model = build_model("se", num_nodes=20, num_relations=3, hidden_channels=4)
    answering = EnergyScorer(model.sheaf(), model.entity_vectors())
    slots = torch.stack([torch.randint(n, (80,), generator=g) for n in (20, 6, 20, 6, 6)], 1)
    batch = QueryBatch.of("ip", slots)
    sets = easy_and_hard(observed, full, batch)
    whole = evaluate_queries(answering, batch, *sets, torch.arange(20))
    given = evaluate_queries(Given(answering.score(batch)), batch, *sets, torch.arange(20))
    assert len(whole.counts) > 0
    assert whole.counts.better.tolist() == given.counts.better.tolist()
    small = evaluate_queries(answering, batch, *sets, torch.arange(20), batch_size=3)
    assert small.counts.better.tolist() == given.counts.better.tolist()


def test_nan_is_an_error():
    scores = torch.zeros(3, 4)
    scores[1, 2] = torch.nan
    hard = AnswerSets.from_sets([(0,), (1,), (2,)])
    with pytest.raises(DivergenceError, match="NaN score for query 1"):
        evaluate_queries(
            Given(scores), queries(3), AnswerSets.from_sets([()] * 3), hard, torch.arange(4)
        )


def test_what_does_not_fit_is_refused():
    scorer, none = Given(torch.zeros(2, 4)), AnswerSets.from_sets([(), ()])
    hard = AnswerSets.from_sets([(3,), (1,)])
    with pytest.raises(ValueError, match="the hard answer 3 is not among the candidates"):
        evaluate_queries(scorer, queries(2), none, hard, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="answers to all 3 queries"):
        evaluate_queries(scorer, queries(3), none, hard, torch.arange(4))
    with pytest.raises(ValueError, match="distinct entity ids"):
        evaluate_queries(scorer, queries(2), none, hard, torch.tensor([1, 1, 3]))
    result = evaluate_queries(scorer, queries(2), none, none, torch.arange(4))
    with pytest.raises(ValueError, match="no hard answer to rank"):
        result.metrics()
    with pytest.raises(ValueError, match=r"'macro' or 'micro' .got 'mean'"):
        result.metrics("mean")


def test_heuristic_asks_whether_the_entity_was_seen_at_the_last_relations():
    triples = torch.tensor([[0, 0, 1], [2, 1, 3], [0, 1, 1]])
    heuristic = EdgeTypeScorer(triples, 5, 2)
    for name, slots, seen in (
        ("1p", [4, 0], {1}),
        ("1p", [4, 3], {0, 2}),
        ("2p", [4, 0, 1], {1, 3}),
        ("2i", [0, 0, 0, 1], {1}),
        ("2u", [0, 0, 0, 1], {1, 3}),
        ("ip", [0, 0, 0, 0, 2], {0}),
        ("2in", [0, 1, 0, 0], {1, 3}),
    ):
        scores = heuristic.score(QueryBatch.of(name, torch.tensor([slots])))
        assert set(scores[0].nonzero().flatten().tolist()) == seen, name
    some = heuristic.score(QueryBatch.of("1p", torch.tensor([[4, 0]])), torch.tensor([3, 1]))
    assert some.tolist() == [[0, 1]]
    assert repr(heuristic) == "EdgeTypeScorer(num_nodes=5, num_relations=2)"


def test_blocks_cover_all_queries_once():
    heuristic = EdgeTypeScorer(torch.tensor([[0, 0, 1], [2, 1, 3], [0, 1, 1]]), 5, 2)
    slots = torch.stack([torch.arange(20) % 5, torch.arange(20) % 4, torch.arange(20) // 5], 1)
    batch = QueryBatch.of("2p", slots)
    whole = heuristic.score(batch)
    parts = list(heuristic.blocks(batch, batch_size=7))
    assert torch.cat([rows for rows, _ in parts]).tolist() == list(range(20))
    assert torch.cat([scores for _, scores in parts]).equal(whole)
    assert heuristic.score(batch[:0]).shape == (0, 5)
    with pytest.raises(ValueError, match="relation ids go from 0 to 3"):
        list(heuristic.blocks(QueryBatch.of("1p", torch.tensor([[0, 4]]))))
