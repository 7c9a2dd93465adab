import numpy as np
import pytest
import torch

from sheafprop.ranking import PROTOCOLS, TripleFilter, evaluate, query_strata
from sheafprop.ranking.query_strata import STRATA, label_queries, strata_metrics
from tests.ranking.test_rank_triples import NUM_NODES, NUM_RELATIONS, Table


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
    monkeypatch.setattr(query_strata, "_ENTRIES_PER_BLOCK", entries)
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
