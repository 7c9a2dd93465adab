import math

import pytest
import torch

from sheafprop.ranking import PROTOCOLS, RankCounts, RankMetrics
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
