import numpy as np
import pytest
import torch

from sheafprop.ranking import (
    PROTOCOLS,
    RankCounts,
    RankingResult,
    RankMetrics,
    TripleFilter,
    evaluate,
    ranking_result,
)
from sheafprop.ranking.ranking_result import STRATA, label_queries, strata_metrics
from tests.ranking.test_rank_triples import NUM_NODES, NUM_RELATIONS, Table, graph


def test_metrics_equal_rank_metrics_for_every_protocol():
    table, triples = Table(), graph()
    triple_filter = TripleFilter(triples, NUM_NODES, NUM_RELATIONS)
    result = evaluate(
        table.score_tails, table.score_heads, triples[:90], triple_filter, num_dropped=5
    )
    for protocol in ("full", "sampled50", "merged", "strict"):
        for ties in (None, "optimistic"):
            metric = RankMetrics(protocol, ties=ties, k=(1, 5))
            for side, part in result.counts.items():
                metric.update(part.better, part.ties, part.candidates, side)
            expected = metric.compute() | {"dropped": 5}
            assert result.metrics(protocol, ties=ties, k=(1, 5)) == pytest.approx(expected)


def test_relations_add_up_to_the_whole():
    table, triples = Table(), graph()[:120]
    triples = triples[triples[:, 1] != 2]
    result = evaluate(table.score_tails, table.score_heads, triples, num_nodes=NUM_NODES)
    for protocol, suffix in (("full", ""), ("sampled50", "_50")):
        parts = result.by_relation(protocol)
        assert sorted(parts) == [0, 1, 3]
        for relation, part in parts.items():
            alone = evaluate(
                table.score_tails,
                table.score_heads,
                triples[triples[:, 1] == relation],
                num_nodes=NUM_NODES,
            ).metrics(protocol)
            assert alone == pytest.approx({**part, "dropped": 0})
        total = sum(part["count"] * part[f"mrr{suffix}"] for part in parts.values())
        whole = result.metrics(protocol)
        assert total / whole["count"] == pytest.approx(whole[f"mrr{suffix}"])


@pytest.mark.parametrize("protocol", ["full", "sampled50", "merged", "strict"])
def test_groups_are_those_of_queries_ranked_alone(protocol):
    table, triples = Table(), graph()[:150]
    result = evaluate(table.score_tails, table.score_heads, triples, num_nodes=NUM_NODES)
    generator = torch.Generator().manual_seed(5)
    labels = {side: torch.randint(-1, 3, (150,), generator=generator) for side in result.counts}
    labels["tail"][labels["tail"] == 2] = 7  # a group of one side alone, and one of the other
    found = result.by_group(labels, protocol, k=(1, 5))
    assert list(found) == [-1, 0, 1, 2, 7]
    for label, metrics in found.items():
        metric = RankMetrics(protocol, k=(1, 5))
        for side, part in result.counts.items():
            chosen = part[labels[side] == label]
            if len(chosen):
                metric.update(chosen.better, chosen.ties, chosen.candidates, side)
        assert {**metrics, "dropped": 0} == pytest.approx(metric.compute())
    assert "tail/count" not in found[2]
    assert sum(metrics["count"] for metrics in found.values()) == 300
    whole = result.by_group(torch.zeros(150, dtype=torch.int32), protocol)
    assert {**whole[0], "dropped": 0} == pytest.approx(result.metrics(protocol))


@pytest.mark.parametrize(
    "labels",
    [
        {"tail": torch.zeros(9, dtype=torch.long)},
        torch.zeros(8, dtype=torch.long),
        torch.zeros(9),
        torch.zeros(9, 2, dtype=torch.long),
    ],
)
def test_labels_of_groups_are_one_integer_for_every_query(labels):
    table, triples = Table(), graph()[:9]
    result = evaluate(table.score_tails, table.score_heads, triples, num_nodes=NUM_NODES)
    with pytest.raises(ValueError, match="Expected 9 integer labels of head queries"):
        result.by_group(labels)


def test_a_draw_agrees_with_the_expectation_and_has_its_own_name():
    table, triples = Table(), graph()
    result = evaluate(table.score_tails, table.score_heads, triples, num_nodes=NUM_NODES)
    expected = result.metrics("sampled50")
    drawn = result.metrics("sampled50", draw_seed=0)
    assert drawn == result.metrics("sampled50", draw_seed=0)
    assert drawn != result.metrics("sampled50", draw_seed=1)
    assert "hits@10_50" not in drawn
    for name in ("hits@1", "hits@10", "mrr", "expected_hits@10", "amri"):
        # 1000 queries: each of these has a standard error below 0.016.
        assert drawn[f"{name}_50_drawn"] == pytest.approx(expected[f"{name}_50"], abs=0.06)
    assert drawn["mean_rank_50_drawn"] == pytest.approx(expected["mean_rank_50"], abs=0.4)
    with pytest.raises(ValueError, match="'full', which ranks all candidates"):
        result.metrics("full", draw_seed=0)


def test_box_and_repr():
    table, triples = Table(), graph()[:9]
    known = {"observed": graph()[9:], "test": triples}
    triple_filter = TripleFilter(known, NUM_NODES, NUM_RELATIONS)
    result = evaluate(
        table.score_tails,
        table.score_heads,
        triples,
        triple_filter,
        num_dropped=2,
        test_set="valid",
    )
    box = result.describe("full")
    assert "observed 491, test 9" in box
    assert "9 evaluated, 2 dropped" in box
    assert "valid (the protocol ranks test)" in box
    raw = evaluate(table.score_tails, None, triples, num_nodes=NUM_NODES, sides="tail")
    assert "none (raw ranking)" in raw.describe("full")
    assert "tail only" in raw.describe("full")
    assert repr(result) == "RankingResult(9, sides=both, num_candidates=30, num_dropped=2)"
    with pytest.raises(ValueError, match="got 'head'"):
        raw.ranks("head")


def test_box_names_every_rule():
    nothing = torch.zeros(205, dtype=torch.long)
    counts = RankCounts(nothing, nothing, nothing + 1092)
    known = "2,198 known triples (observed 1,993, test 205), except the one being ranked"
    result = RankingResult(
        torch.zeros(205, 3, dtype=torch.long), {"head": counts, "tail": counts}, 1093, known, 3
    )
    lines = dict(line.split(":", 1) for line in result.describe("sampled50").splitlines())
    assert list(lines) == [
        "protocol", "candidates", "filter", "ties", "sides", "test set", "triples",
        "small sets",
    ]  # fmt: skip
    assert "sampled50" in lines["protocol"]
    assert "49 negatives" in lines["candidates"]
    assert "1,093" in lines["candidates"]
    assert "observed 1,993" in lines["filter"]
    assert "realistic" in lines["ties"]
    assert lines["sides"].strip() == "both (head and tail)"
    assert lines["triples"].strip() == "205 evaluated, 3 dropped"


def test_box_marks_departures_from_the_protocol():
    one = torch.ones(1, dtype=torch.long)
    result = RankingResult(
        torch.zeros(1, 3, dtype=torch.long),
        {"tail": RankCounts(one, one, 10 * one)},
        10,
        "none (raw ranking)",
        test_set="test",
        notes=("read this",),
    )
    box = result.describe("merged", ties="optimistic")
    assert "optimistic (equal scores count as worse)" in box
    assert "tail only" in box
    assert "test (the protocol ranks valid+test)" in box
    assert box.endswith("note:       read this")
    with pytest.raises(ValueError, match="'mean'"):
        result.describe("full", ties="mean")


def test_queries_with_fewer_candidates_than_draws_are_counted():
    sizes = torch.tensor([0, 1, 16, 48, 49, 50, 900, 48])
    better = torch.minimum(sizes, torch.tensor(1))
    counts = RankCounts(better, torch.zeros_like(sizes), sizes)
    few = RankCounts(better[3:], torch.zeros_like(sizes[3:]), sizes[3:])
    result = RankingResult(
        torch.zeros(8, 3, dtype=torch.long), {"head": counts, "tail": few}, 901, "none"
    )
    metric = RankMetrics("sampled50")
    for side, part in result.counts.items():
        metric.update(part.better, part.ties, part.candidates, side)
    for metrics in (result.metrics("sampled50"), metric.compute()):
        assert metrics["few_candidates_50"] == 7
        assert metrics["head/few_candidates_50"] == 5
        assert metrics["tail/few_candidates_50"] == 2
    assert result.metrics("sampled50", ties="optimistic")["few_candidates_50"] == 7
    assert "small sets: 7 of 16 queries have fewer than 49 candidates" in result.describe(
        "sampled50"
    )
    for protocol in ("full", "merged"):
        assert not [name for name in result.metrics(protocol) if "few" in name]
        assert "small sets" not in result.describe(protocol)
    # Why it is said: the mean rank may exceed the number of candidates.
    worst = RankCounts(torch.tensor([16]), torch.tensor([0]), torch.tensor([16]))
    metric = RankMetrics("sampled50")
    metric.update(worst.better, worst.ties, worst.candidates, "tail")
    assert metric.compute()["mean_rank_50"] == pytest.approx(50)


def graphs(seed=0):
    """A sparse observed graph of several components, with loops and parallel triples."""
    generator = torch.Generator().manual_seed(seed)
    observed = torch.randint(NUM_NODES - 6, (26, 3), generator=generator)
    observed[:, 1] %= NUM_RELATIONS
    observed = torch.cat([observed, observed[:4], torch.tensor([[5, 1, 5], [24, 0, 25]])])
    triples = torch.randint(NUM_NODES, (200, 3), generator=generator)
    triples[:, 1] %= NUM_RELATIONS
    return observed, torch.cat([triples, observed[:3], torch.tensor([[28, 2, 28]])])


def brute_labels(observed, triples):
    steps = np.full((NUM_NODES, NUM_NODES), 10**6)
    np.fill_diagonal(steps, 0)
    for h, _, t in observed.tolist():
        steps[h, t] = steps[t, h] = min(steps[h, t], 1)
    for via in range(NUM_NODES):  # Floyd and Warshall
        steps = np.minimum(steps, steps[:, via, None] + steps[None, via])
    seen = {(s, r, e) for h, r, t in observed.tolist() for s, e in (("head", h), ("tail", t))}
    for h, r, t in triples.tolist():
        for side, answer in (("head", h), ("tail", t)):
            far = steps[h, t]
            yield (
                side,
                int((side, r, answer) not in seen),
                3 if far >= 10**6 else 0 if far <= 1 else min(far, 3) - 1,
            )


@pytest.mark.parametrize("entries", [2**24, 3])
def test_labels_equal_those_of_a_loop(entries, monkeypatch):
    monkeypatch.setattr(ranking_result, "_ENTRIES_PER_BLOCK", entries)
    observed, triples = graphs()
    labels = label_queries(observed, triples)
    expected = list(brute_labels(observed, triples))
    for side in ("head", "tail"):
        links = [link for s, link, _ in expected if s == side]
        far = [distance for s, _, distance in expected if s == side]
        assert labels["half-link"][side].tolist() == links
        assert labels["distance"][side].tolist() == far
        assert set(links) == {0, 1}
        assert set(far) == {0, 1, 2, 3}


def test_nothing_observed_and_nothing_asked():
    observed, triples = graphs()
    labels = label_queries(observed[:0], triples[-2:])
    assert labels["half-link"]["head"].tolist() == [1, 1]
    assert labels["distance"]["tail"].tolist() == [3, 0]
    assert label_queries(observed, triples[:0])["distance"]["head"].numel() == 0


@pytest.mark.parametrize("protocol", ["full", "sampled50", "strict"])
def test_figures_of_strata_are_those_of_their_queries_alone(protocol):
    observed, triples = graphs()
    table = Table()
    known = TripleFilter(torch.cat([observed, triples]), NUM_NODES, NUM_RELATIONS)
    result = evaluate(table.score_tails, table.score_heads, triples, known)
    found = strata_metrics(result, label_queries(observed, triples), protocol)
    assert list(found) == [name for names in STRATA.values() for name in names]
    key = PROTOCOLS[protocol].key
    labels = list(brute_labels(observed, triples))
    for place, names in enumerate(STRATA.values(), 1):
        for label, name in enumerate(names):
            rows = {
                side: torch.tensor([one[place] == label for one in labels if one[0] == side])
                for side in ("head", "tail")
            }
            count, hits = 0, 0.0
            for side, mask in rows.items():
                alone = evaluate(
                    table.score_tails, table.score_heads, triples[mask], known, sides=side
                ).metrics(protocol)
                count += alone["count"]
                hits += alone["count"] * alone[key("hits@10")]
            assert found[name]["count"] == count
            assert found[name][key("hits@10")] == pytest.approx(hits / count)
