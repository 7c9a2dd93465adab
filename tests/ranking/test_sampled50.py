import math

import pytest
import torch

from sheafprop.ranking import (
    RankCounts,
    RankMetrics,
    sampled50_draw,
    sampled50_expectation,
)


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
