import math

import pytest
import torch
from pykeen.evaluation import RankBasedEvaluator

from sheafprop.ranking import RankMetrics, TripleFilter, rank_counts

NUM_NODES = 23
TIES = ("optimistic", "realistic", "pessimistic")


def ranked_problem(num_triples=60, filtered=True, seed=0):
    """Random triples, scores of few distinct values, and a filter that is known to matter."""
    generator = torch.Generator().manual_seed(seed)
    known = torch.randint(NUM_NODES, (300, 3), generator=generator)
    known[:, 1] %= 3
    triples = known[:num_triples]
    scores = {
        side: torch.randint(8, (num_triples, NUM_NODES), generator=generator).float()
        for side in ("head", "tail")
    }
    pairs = {side: None for side in scores}
    if filtered:
        triple_filter = TripleFilter(known, NUM_NODES, 3)
        pairs["tail"] = triple_filter.tails(triples[:, 0], triples[:, 1])
        pairs["head"] = triple_filter.heads(triples[:, 1], triples[:, 2])
    return triples, scores, pairs


def counts_of(triples, scores, pairs):
    return {
        side: rank_counts(scores[side], triples[:, 0 if side == "head" else 2], pairs[side])
        for side in scores
    }


def add(metric, counts, side, **kwargs):
    metric.update(counts.better, counts.ties, counts.candidates, side, **kwargs)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("sides", [("head",), ("tail",), ("head", "tail")])
def test_equals_pykeen(filtered, sides):
    triples, scores, pairs = ranked_problem(filtered=filtered)
    counts = counts_of(triples, scores, pairs)
    if filtered:
        assert any((counts[side].candidates < NUM_NODES - 1).any() for side in sides)
    evaluator = RankBasedEvaluator(filtered=filtered)
    for side in sides:
        target = triples[:, 0 if side == "head" else 2, None]
        true_scores = scores[side].gather(1, target)
        masked = scores[side].clone()
        if pairs[side] is not None:
            masked[pairs[side]] = math.nan
            masked.scatter_(1, target, true_scores)
        evaluator.process_scores_(triples, side, masked, true_scores)
    theirs = evaluator.finalize()
    names = {
        "hits@1": "hits_at_1",
        "hits@3": "hits_at_3",
        "hits@10": "hits_at_10",
        "mrr": "inverse_harmonic_mean_rank",
        "mean_rank": "arithmetic_mean_rank",
        "amri": "adjusted_arithmetic_mean_rank_index",
    }
    values = set()
    suffixes = {"realistic": "", "optimistic": "_optimistic", "pessimistic": "_pessimistic"}
    rules = [("full", ties, suffix) for ties, suffix in suffixes.items()]
    for protocol, ties, suffix in [*rules, ("strict", "pessimistic", "_strict")]:
        metric = RankMetrics(protocol, ties=None if protocol == "strict" else ties)
        for side in sides:
            add(metric, counts[side], side)
        ours = metric.compute()
        for side in (*sides, "both"):
            prefix = "" if side == "both" else f"{side}/"
            for name, their_name in names.items():
                if name == "amri" and ties != "realistic":
                    continue  # PyKEEN defines it for the realistic rank only
                expected = theirs.get_metric(f"{side}.{ties}.{their_name}")
                # PyKEEN computes in float32.
                assert ours[f"{prefix}{name}{suffix}"] == pytest.approx(expected, abs=2e-6), name
                values.add(expected)
        assert ours["count"] == 60 * len(sides)
    assert len(values) > 10  # the figures differ by tie rule: equality says something


@pytest.mark.parametrize(
    ("protocol", "ties", "suffix"),
    [
        ("full", "realistic", ""),
        ("full", "optimistic", "_optimistic"),
        ("full", "pessimistic", "_pessimistic"),
        ("strict", "pessimistic", "_strict"),
    ],
)
def test_equals_a_loop(protocol, ties, suffix):
    triples, scores, pairs = ranked_problem()
    ranks, chances, candidates = [], [], []
    for side, row_scores in scores.items():
        filtered = set(zip(*(part.tolist() for part in pairs[side]), strict=True))
        for i, row in enumerate(row_scores.tolist()):
            true = int(triples[i, 0 if side == "head" else 2])
            others = [s for j, s in enumerate(row) if j != true and (i, j) not in filtered]
            better = sum(s > row[true] for s in others)
            equal = sum(s == row[true] for s in others)
            optimistic, pessimistic = 1 + better, 1 + better + equal
            ranks.append(
                {
                    "optimistic": optimistic,
                    "pessimistic": pessimistic,
                    "realistic": (optimistic + pessimistic) / 2,
                }[ties]
            )
            places = range(optimistic, pessimistic + 1)
            chances.append(sum(place <= 3 for place in places) / len(places))
            candidates.append(len(others))
    metric = RankMetrics(protocol, ties=None if protocol == "strict" else ties)
    for side, counts in counts_of(triples, scores, pairs).items():
        add(metric, counts, side)
    result = metric.compute()
    size = len(ranks)
    for k in (1, 3, 10):
        assert result[f"hits@{k}{suffix}"] == pytest.approx(sum(r <= k for r in ranks) / size)
    assert result[f"expected_hits@3{suffix}"] == pytest.approx(sum(chances) / size)
    assert result[f"mrr{suffix}"] == pytest.approx(sum(1 / r for r in ranks) / size)
    assert result[f"mean_rank{suffix}"] == pytest.approx(sum(ranks) / size)
    chance_rank = sum((n + 2) / 2 for n in candidates) / size
    amri = 1 - (sum(ranks) / size - 1) / (chance_rank - 1)
    assert result[f"amri{suffix}"] == pytest.approx(amri)


def test_constant_scores_are_not_a_good_model():
    counts = rank_counts(torch.zeros(4, 11), torch.arange(4))
    assert counts.ranks("optimistic").tolist() == [1.0] * 4
    assert counts.ranks("realistic").tolist() == [6.0] * 4
    assert counts.ranks("pessimistic").tolist() == [11.0] * 4
    results = {}
    for ties in TIES:
        metric = RankMetrics(ties=ties)
        add(metric, counts, "tail")
        results |= metric.compute()
    assert results["mean_rank"] == 6.0
    assert results["expected_hits@10"] == pytest.approx(10 / 11)
    assert results["hits@10_pessimistic"] == 0.0
    assert results["hits@10_optimistic"] == results["hits@1_optimistic"] == 1.0
    assert results["hits@1"] == 0.0
    assert results["amri"] == 0.0


def test_hits_at_10_includes_rank_10_and_not_11():
    metric = RankMetrics()
    zero = torch.zeros(3, dtype=torch.long)
    metric.update(torch.tensor([0, 9, 10]), zero, zero + 100, "tail")
    assert metric.compute()["hits@10"] == pytest.approx(2 / 3)
    metric.reset()
    # Nine better and one equal: the realistic rank 10.5 is no hit.
    metric.update(zero + 9, zero + 1, zero + 100, "tail")
    assert metric.compute()["hits@10"] == 0.0
    assert metric.compute()["expected_hits@10"] == 0.5


def test_perfect_ranking_of_negative_distances():
    distances = torch.rand(5, 30, generator=torch.Generator().manual_seed(0)) + 1
    distances[torch.arange(5), torch.arange(5)] = 0.5
    counts = rank_counts(-distances, torch.arange(5))
    metric = RankMetrics()
    add(metric, counts, "head")
    result = metric.compute()
    assert result["mrr"] == result["hits@1"] == result["amri"] == result["head/mrr"] == 1.0
    assert "tail/mrr" not in result


@pytest.mark.parametrize("protocol", ["full", "sampled50", "merged", "strict"])
def test_states_add_up(protocol):
    triples, scores, pairs = ranked_problem()
    counts = counts_of(triples, scores, pairs)
    whole, first, second = (RankMetrics(protocol) for _ in range(3))
    for side, part in counts.items():
        add(whole, part, side, dropped=2)
        rows = torch.arange(60)
        add(first, part[rows[:13]], side, dropped=2)
        add(second, part[rows[13:]], side)
    expected = whole.compute()
    assert expected["dropped"] == 4
    assert expected["count"] == 120

    def gather(state, group=None):
        name = "sums" if state.dtype == torch.float64 else "dropped"
        return [getattr(metric, name).clone() for metric in (first, second)]

    synced = RankMetrics(protocol, dist_sync_fn=gather, distributed_available_fn=lambda: True)
    synced._update_count = 1
    assert synced.compute() == pytest.approx(expected)
    first.merge_state(second)
    assert first.compute() == pytest.approx(expected)


def test_protocols_never_share_a_name():
    zero = torch.zeros(3, dtype=torch.long)
    names, result = [], {}
    for protocol in ("full", "sampled50", "merged", "strict"):
        metric = RankMetrics(protocol)
        metric.update(zero + 4, zero + 2, zero + 80, "tail")
        names += [name for name in metric.compute() if "count" not in name and name != "dropped"]
        result |= metric.compute()
    assert len(names) == len(set(names))
    assert {"hits@10", "tail/hits@10", "hits@10_50", "tail/mrr_merged"} <= set(names)
    assert result["mean_rank"] == 6.0
    assert result["mean_rank_merged"] == 7.0


def test_nothing_ranked_is_an_error():
    with (
        pytest.warns(UserWarning, match="before the ``update``"),
        pytest.raises(ValueError, match="at least one ranked triple"),
    ):
        RankMetrics().compute()
    none = torch.empty(0, dtype=torch.long)
    for protocol in ("full", "sampled50"):
        metric = RankMetrics(protocol)
        metric.update(none, none, none, "tail", dropped=3)
        with pytest.raises(ValueError, match="at least one ranked triple"):
            metric.compute()


def test_no_candidates_give_finite_metrics():
    zero = torch.zeros(2, dtype=torch.long)
    for protocol in ("full", "sampled50", "merged", "strict"):
        metric = RankMetrics(protocol)
        metric.update(zero, zero, zero, "tail")
        result = metric.compute()
        assert all(math.isfinite(value) for value in result.values())
        assert result[metric.protocol.key("mrr")] == 1.0


def test_float_conversions_keep_the_sums_exact():
    metric = RankMetrics().half()
    one = torch.ones(1, dtype=torch.long)
    for _ in range(3):
        metric.update(one * 100_003, one * 0, one * 300_000, "tail")
    assert metric.sums.dtype == torch.float64
    assert metric.compute()["mean_rank"] == 100_004.0


def test_bad_input_and_repr():
    assert repr(RankMetrics()) == "RankMetrics(protocol=full, ties=realistic, k=(1, 3, 10))"
    assert repr(RankMetrics("merged", k=(10,))) == (
        "RankMetrics(protocol=merged, ties=pessimistic, k=(10,))"
    )
    with pytest.raises(ValueError, match="full, sampled50, merged, strict \\(got 'sampled'\\)"):
        RankMetrics("sampled")
    with pytest.raises(ValueError, match="'average'"):
        RankMetrics(ties="average")
    for k in ((), (0,), (1, 1), (2.5,)):
        with pytest.raises(ValueError, match="positive integers"):
            RankMetrics(k=k)
    zero = torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="head, tail \\(got 'both'\\)"):
        RankMetrics().update(zero, zero, zero, "both")
    with pytest.raises(ValueError, match="got 1, 0 and 0 in row 0"):
        RankMetrics().update(zero + 1, zero, zero, "tail")
    with pytest.raises(ValueError, match="dropped >= 0"):
        RankMetrics().update(zero, zero, zero, "tail", dropped=-1)
