import math

import pytest
import torch

from sheafprop.ranking import (
    PROTOCOLS,
    RankCounts,
    RankMetrics,
    sampled50_draw,
    sampled50_expectation,
)
from sheafprop.ranking.metrics import metrics_by_side, name_metrics, num_values, query_values
from tests.ranking.test_rank_metrics import add

COUNTS = [(0, 0, 9), (2, 3, 9), (9, 0, 9), (0, 5, 40)]


@pytest.mark.parametrize(
    ("ties", "share"), [("optimistic", 0.0), ("realistic", 0.5), ("pessimistic", 1.0)]
)
def test_sums_of_values_give_the_metrics_of_a_loop(ties, share):
    counts = RankCounts(*torch.tensor(COUNTS).T)
    values = query_values(counts, PROTOCOLS["full"], ties, (1, 3))
    assert values.shape == (4, num_values((1, 3)))
    ranks = [1 + b + share * e for b, e, _ in COUNTS]
    found = name_metrics(values.sum(0).tolist(), (1, 3))
    assert found["hits@1"] == sum(rank <= 1 for rank in ranks) / 4
    assert found["hits@3"] == sum(rank <= 3 for rank in ranks) / 4
    assert found["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / 4)
    assert found["mean_rank"] == pytest.approx(sum(ranks) / 4)
    chance = sum(n for *_, n in COUNTS) / 8
    assert found["amri"] == pytest.approx(1 - (sum(ranks) / 4 - 1) / chance)


def test_sides_without_queries_have_no_metrics():
    rows = query_values(RankCounts(*torch.tensor(COUNTS).T), PROTOCOLS["full"], "realistic", (1,))
    sums = torch.stack([rows.sum(0), rows[:0].sum(0)])
    found = metrics_by_side(sums, ("head", "tail"), PROTOCOLS["merged"], "pessimistic", (1,))
    assert found["count"] == found["head/count"] == 4
    assert found["head/mrr_merged"] == found["mrr_merged"]
    assert not [name for name in found if name.startswith("tail/")]
    with pytest.raises(ValueError, match="at least one ranked triple"):
        metrics_by_side(0 * sums, ("head", "tail"), PROTOCOLS["full"], "realistic", (1,))


@pytest.mark.parametrize(("better", "ties"), [(0, 0), (0, 7), (4, 1), (6, 90), (2000, 0)])
def test_expected_figures_are_means_over_the_order_of_ties(better, ties):
    metric = RankMetrics(k=(1, 5))
    add(metric, RankCounts(*(torch.tensor([n]) for n in (better, ties, 5000))), "tail")
    ranks = [better + place for place in range(1, ties + 2)]
    found = metric.compute()
    assert found["expected_mrr"] == pytest.approx(sum(1 / r for r in ranks) / len(ranks), rel=1e-9)
    for k in (1, 5):
        assert found[f"expected_hits@{k}"] == pytest.approx(sum(r <= k for r in ranks) / len(ranks))


def test_expected_figures_of_sampled_negatives_are_means_over_draw_and_order():
    n, b, e = 30, 4, 11
    counts = RankCounts(*(torch.tensor([value]) for value in (b, e, n)))
    metric = RankMetrics("sampled50", k=(10,))
    add(metric, counts, "head")
    hits = reciprocal = 0.0
    for above in range(50):
        for tied in range(50 - above):
            draws = math.comb(49, above) * math.comb(49 - above, tied)
            chance = draws * (b / n) ** above * (e / n) ** tied
            chance *= (1 - (b + e) / n) ** (49 - above - tied)
            ranks = range(above + 1, above + tied + 2)
            hits += chance * sum(r <= 10 for r in ranks) / len(ranks)
            reciprocal += chance * sum(1 / r for r in ranks) / len(ranks)
    found = metric.compute()
    assert found["expected_hits@10_50"] == pytest.approx(hits, rel=1e-9)
    assert found["expected_mrr_50"] == pytest.approx(reciprocal, rel=1e-9)


def exact(b, e, n, k, share=0.5):
    """Hits@k, reciprocal rank and rank by Python's integers, one outcome at a time."""
    hits = reciprocal = mean = 0.0
    for above in range(50):
        for equal in range(50 - above):
            ways = math.comb(49, above) * math.comb(49 - above, equal)
            worse = n - b - e
            chance = ways * b**above * e**equal * worse ** (49 - above - equal) / n**49
            rank = 1 + above + share * equal
            hits += chance * (rank <= k)
            reciprocal += chance / rank
            mean += chance * rank
    return hits, reciprocal, mean


def metrics(b, e, n, **kwargs):
    metric = RankMetrics("sampled50", **kwargs)
    metric.update(torch.tensor([b]), torch.tensor([e]), torch.tensor([n]), "tail")
    return metric.compute()


def test_check_values():
    assert metrics(150, 20, 900)["hits@10_50"] == pytest.approx(0.599, abs=5e-4)
    assert metrics(0, 400, 900)["hits@10_50"] == pytest.approx(0.173, abs=5e-4)


@pytest.mark.parametrize(
    ("b", "e", "n"),
    [(150, 20, 900), (0, 400, 900), (7, 0, 30), (0, 0, 5), (0, 5, 5), (5, 0, 5), (2, 3, 5)],
)
@pytest.mark.parametrize(
    ("ties", "share"), [("optimistic", 0.0), ("realistic", 0.5), ("pessimistic", 1.0)]
)
def test_equals_the_sum_over_outcomes(b, e, n, ties, share):
    result = metrics(b, e, n, ties=ties)
    suffix = "_50" if ties == "realistic" else f"_50_{ties}"
    for k in (1, 3, 10):
        hits, reciprocal, mean = exact(b, e, n, k, share)
        assert result[f"hits@{k}{suffix}"] == pytest.approx(hits, abs=1e-11)
    assert result[f"mrr{suffix}"] == pytest.approx(reciprocal, abs=1e-11)
    assert result[f"mean_rank{suffix}"] == pytest.approx(mean, abs=1e-10)
    assert result[f"mean_rank{suffix}"] == pytest.approx(1 + 49 * (b + share * e) / n)
    assert result[f"amri{suffix}"] == pytest.approx(1 - 2 * (b + share * e) / n)


def test_no_candidate_is_rank_one():
    result = metrics(0, 0, 0)
    assert result["hits@1_50"] == result["mrr_50"] == result["mean_rank_50"] == 1.0


def test_large_graphs_stay_exact():
    n = 10**9
    assert metrics(1, 0, n)["hits@1_50"] == pytest.approx((1 - 1 / n) ** 49, abs=1e-12)
    assert metrics(n - 1, 0, n)["hits@10_50"] == pytest.approx(0.0, abs=1e-12)


def test_batches_keep_the_order_of_queries():
    generator = torch.Generator().manual_seed(0)
    n = torch.randint(1, 60, (700,), generator=generator)
    b = (torch.rand(700, generator=generator) * (n + 1)).long()
    e = (torch.rand(700, generator=generator) * (n - b + 1)).long()
    e[::2] = 0
    b[::2] = b[::2].clamp(max=40)
    together = sampled50_expectation(RankCounts(b, e, n), lambda B, T: torch.stack([B, T], 1))
    assert together[:, 0].allclose(49 * b.double() / n)
    assert together[:, 1].allclose(49 * e.double() / n)


@pytest.mark.parametrize("tied", [False, True])
def test_equals_the_mean_of_2000_draws(tied):
    b = torch.tensor([0, 3, 40, 150, 400])
    e = torch.tensor([10, 5, 60, 20, 300]) if tied else torch.zeros(5, dtype=torch.long)
    n = torch.tensor([15, 20, 300, 900, 1000])
    draws = [sampled50_draw(b, e, n, seed) for seed in range(2000)]
    assert all(draw.candidates.tolist() == [49] * 5 for draw in draws[:3])
    ranks = torch.stack([draw.ranks() for draw in draws])
    for i in range(5):
        expected = metrics(int(b[i]), int(e[i]), int(n[i]))
        for name, drawn in {
            "hits@1": (ranks[:, i] <= 1).double(),
            "hits@3": (ranks[:, i] <= 3).double(),
            "hits@10": (ranks[:, i] <= 10).double(),
            "mrr": 1 / ranks[:, i],
            "mean_rank": ranks[:, i],
        }.items():
            error = float(drawn.std()) / 2000**0.5
            gap = abs(float(drawn.mean()) - expected[f"{name}_50"])
            assert gap <= 4.5 * error + 1e-3, (i, name)


def test_draws_are_seeded_and_skip_queries_without_candidates():
    b, e, n = torch.tensor([5, 0]), torch.tensor([2, 0]), torch.tensor([20, 0])
    first, again, other = (sampled50_draw(b, e, n, seed) for seed in (1, 1, 2))
    assert first.better.equal(again.better)
    assert first.ties.equal(again.ties)
    assert not (first.better.equal(other.better) and first.ties.equal(other.ties))
    assert first.candidates.tolist() == [49, 0]
    assert first.ranks().tolist()[1] == 1.0
