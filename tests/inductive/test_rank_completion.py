"""Completion ranks with what is observed, and filters with everything that is known."""

from dataclasses import replace

import pytest
import torch

from sheafprop.data import assemble
from sheafprop.inductive.episode_model import EpisodeSettings
from sheafprop.inductive.episode_scorer import EpisodeScorer
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import inference_filter
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import LogProximity, ProximitySettings, add_proximity
from sheafprop.inductive.rank_completion import (
    FILTERED_PROXIMITY,
    MEAN,
    PEERS,
    PROXIMITY,
    baselines,
    rank_completion,
)
from sheafprop.nn import proximity
from sheafprop.ranking import PROTOCOLS, evaluate
from sheafprop.ranking.ranking_result import STRATA
from sheafprop.training.episode_training import train_episodes
from tests.inductive.test_inductive_propagation import trained
from tests.toy import parts, toy_data

SETTINGS = PropagationSettings(num_random=2, iterations=2)


def brute_ranks(data, triples, score):
    """Optimistic rank and ties of both ends, known triples of the inference graph left out."""
    known = {tuple(t) for t in torch.cat([data.inference.triples, data.valid, data.test]).tolist()}
    if data.mode == "semi-inductive":
        known |= {tuple(t) for t in data.train_valid.tolist()}
    found = []
    for triple in map(tuple, triples.tolist()):
        for place in (0, 2):
            others = [
                (*triple[:place], entity, *triple[place + 1 :])
                for entity in range(data.inference.num_nodes)
            ]
            values = [score(place, t) for t in others if t not in known]
            own = score(place, triple)
            found.append((sum(v > own for v in values), sum(v == own for v in values)))
    return found


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_the_heuristic_knows_the_observed_triples_alone(mode):
    """Ends of relations that only triples to predict have are as good as any other to it."""
    given = parts(mode)
    # Relations whose ends nothing observed tells of.
    given["observed"] = [t for t in given["observed"] if t[1] != "far"]
    data = assemble("ring", mode, **given)
    observed = data.inference.triples.tolist()
    seen = {(0, r, h) for h, r, _ in observed} | {(2, r, t) for _, r, t in observed}
    expected = brute_ranks(
        data, data.test, lambda place, triple: (place, triple[1], triple[place]) in seen
    )
    result = rank_completion(trained("transe", data), data, SETTINGS, progress=False)
    (row,) = (
        row
        for row in result.rows
        if (row["method"], row["protocol"]) == ("edge-type heuristic", "full")
    )
    ranks = [1 + b + e / 2 for b, e in expected]
    assert row["metrics"]["mrr"] == pytest.approx(sum(1 / r for r in ranks) / len(ranks))
    hits = [min(max((10 - b) / (e + 1), 0), 1) for b, e in expected]
    assert row["metrics"]["expected_hits@10"] == pytest.approx(sum(hits) / len(hits))


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_merged_ranks_validation_and_test_together(mode):
    data = toy_data(mode)
    model = trained("rotate", data)
    both = replace(data, test=torch.cat([data.valid, data.test]), valid=data.valid[:0])
    asked = dict(progress=False, protocols=["full", "merged"])
    merged = {r["method"]: r for r in rank_completion(model, data, SETTINGS, **asked).rows
              if r["protocol"] == "merged"}  # fmt: skip
    whole = {r["method"]: r for r in rank_completion(model, both, SETTINGS, **asked).rows
             if r["protocol"] == "full"}  # fmt: skip
    for method, row in merged.items():
        count = 2 * (len(data.valid) + len(data.test))
        assert row["metrics"]["count"] == whole[method]["metrics"]["count"] == count
        # Where nothing is tied, the rules for ties agree.
        if method not in ("edge-type heuristic", PROXIMITY, FILTERED_PROXIMITY):
            key = PROTOCOLS["merged"].key("mrr")
            assert row["metrics"][key] == pytest.approx(whole[method]["metrics"]["mrr"], abs=1e-3)
        # What no choice on validation had a part in is compared.
        chosen = "sheaf propagation" in method or "start" in method
        assert ("mark" in row) == chosen


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_ranks_leave_out_every_known_triple_of_the_inference_graph(mode):
    """And those alone: a triple of another graph that has the same ids is a candidate."""
    given = parts(mode)
    ends = sorted({end for h, _, t in given["observed"] for end in (h, t)})
    taken = {t for part in given.values() for t in part}
    # Other answers to what is asked, so that the filter matters: half observed, half to predict.
    more = {(h, r, ends[i]) for i, (h, r, _) in enumerate(given["test"])}
    more |= {(ends[-1 - i], r, t) for i, (_, r, t) in enumerate(given["test"])}
    more = sorted(more - taken)
    given["observed"] = given["observed"] + more[::2]
    given["valid"] = given["valid"] + more[1::2]
    data = assemble("ring", mode, **given)
    model = trained("transe", data)

    class Given:
        """Scores that only depend on the ids, all different."""

        @staticmethod
        def value(h, r, t):
            return torch.sin(12.9 * h + 78.2 * r + 37.7 * t).double()

        def score_tails(self, head, relation):
            ends = torch.arange(data.inference.num_nodes)
            return self.value(head[:, None], relation[:, None], ends[None])

        def score_heads(self, relation, tail):
            ends = torch.arange(data.inference.num_nodes)
            return self.value(ends[None], relation[:, None], tail[:, None])

    own = Given()
    result = rank_completion(model, data, SETTINGS, further={"given": own}, progress=False)
    (row,) = (r for r in result.rows if (r["method"], r["protocol"]) == ("given", "full"))
    expected = brute_ranks(
        data, data.test, lambda _, triple: float(own.value(*map(torch.tensor, triple)))
    )
    ranks = [1 + b + e / 2 for b, e in expected]
    assert row["metrics"]["mrr"] == pytest.approx(sum(1 / r for r in ranks) / len(ranks))


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_strata_split_the_queries_by_the_observed_triples_alone(mode):
    data = toy_data(mode)
    asked = dict(progress=False, protocols=["full", "merged", "strict"])
    rows = rank_completion(trained("rotate", data), data, SETTINGS, **asked).rows
    observed = data.inference.triples.tolist()
    ends = {(0, r, h) for h, r, _ in observed} | {(2, r, t) for _, r, t in observed}
    steps = {(h, t) for h, _, t in observed} | {(t, h) for h, _, t in observed}
    for row in rows:
        triples = data.test
        if row["protocol"] == "merged":
            triples = torch.cat([data.valid, data.test])
        links = [(e, r, (h, r, t)[e]) in ends for h, r, t in triples.tolist() for e in (0, 2)]
        near = [(h, t) in steps or h == t for h, _, t in triples.tolist()]
        counts = {name: figures["count"] for name, figures in row["strata"].items()}
        assert counts.get("half-link observed", 0) == sum(links)
        assert counts.get("within 1 step", 0) == 2 * sum(near)
        key = PROTOCOLS[row["protocol"]].key("mrr")
        for split in STRATA.values():
            parts = [row["strata"][name] for name in split if name in row["strata"]]
            assert sum(part["count"] for part in parts) == row["metrics"]["count"]
            total = sum(part["count"] * part[key] for part in parts)
            assert total / row["metrics"]["count"] == pytest.approx(row["metrics"][key])


def test_rows_leave_out_episodes_and_proximity_one_by_one(monkeypatch):
    data = toy_data("fully-inductive")
    model = trained("rotate", data)
    settings = EpisodeSettings(num_steps=2, num_random=2)
    episodes, _ = train_episodes(model, data.train.triples, settings)
    result = rank_completion(
        model,
        data,
        SETTINGS,
        episodes=episodes,
        proximity=ProximitySettings(weight=0.5, share=0.2),
        progress=False,
    )
    rows = [row for row in result.rows if row["protocol"] == "full"]
    assert [row["method"] for row in rows[:4]] == [
        "RotatE + episodes + proximity",
        "RotatE + episodes",
        "RotatE + sheaf propagation + proximity",
        "RotatE + sheaf propagation",
    ]
    plain = rank_completion(model, data, SETTINGS, progress=False).rows
    assert plain[0]["method"] == "RotatE + sheaf propagation"
    # Without both, by flags, every figure is that of before.
    before = {(row["method"], row["protocol"]): row for row in plain}
    for row in result.rows:
        if (row["method"], row["protocol"]) in before:
            assert row == before[row["method"], row["protocol"]]
    labels = data.inference.entities.labels
    scorer = EpisodeScorer(episodes, data.inference.triples, labels)
    near = torch.log(proximity(data.inference.triples[:, [0, 2]].T, len(labels)) + 1e-6)
    loops = {r for h, r, t in data.train.triples.tolist() if h == t}

    def score(place, triple):
        h, r, t = triple
        one = torch.tensor([h]), torch.tensor([r]), torch.tensor([t])
        if place == 2:
            row, own = scorer.score_tails(one[0], one[1])[0] + 0.5 * near[h], h
        else:
            row, own = scorer.score_heads(one[1], one[2])[0] + 0.5 * near[t], t
        if r not in loops:
            row[own] = row.min() - 1
        return float(row[triple[place]])

    ranks = [1 + b + e / 2 for b, e in brute_ranks(data, data.test, score)]
    assert rows[0]["metrics"]["mrr"] == pytest.approx(sum(1 / r for r in ranks) / len(ranks))
    # A graph that is too large for the baselines says so.
    monkeypatch.setattr("sheafprop.inductive.proximity_scorer._MOST_PRODUCTS", 1.0)
    large = rank_completion(model, data, SETTINGS, progress=False)
    assert not any(row["method"] == PROXIMITY for row in large.rows)
    assert "proximity is ranked only" in large.protocols["full"]


def short_episodes(model, data, **settings):
    settings = EpisodeSettings(num_steps=1, num_random=2, **settings)
    return train_episodes(model, data.train.triples, settings)[0]


@pytest.mark.parametrize("with_episodes", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.0])
def test_a_row_leaves_out_the_frequency_of_answers(share, with_episodes):
    data = toy_data("fully-inductive")
    model = trained("rotate", data)
    episodes = short_episodes(model, data) if with_episodes else None
    near = ProximitySettings(weight=0.5, share=share, frequency=0.7)
    given = dict(episodes=episodes, protocols=["full", "merged"], progress=False)
    rows = rank_completion(model, data, SETTINGS, proximity=near, **given).rows
    rows = {(row["method"], row["protocol"]): row for row in rows}
    names = list(dict.fromkeys(method for method, _ in rows))
    first = "RotatE + sheaf propagation"
    expected = [f"{first} + frequency", first]
    if share:
        expected = [f"{first} + proximity + frequency", f"{first} + proximity", first]
    if with_episodes:
        expected = ["RotatE + episodes + proximity", "RotatE + episodes", *expected]
    assert names[: len(expected)] == expected
    # The others are those without the frequency.
    bare = replace(near, frequency=0.0)
    others = rank_completion(model, data, SETTINGS, proximity=bare, **given).rows
    others = {(row["method"], row["protocol"]): row for row in others}
    assert set(rows) - set(others) == {
        (expected[-3 if share else -2], p) for p in given["protocols"]
    }
    for key in set(rows) & set(others):
        assert rows[key] == others[key]
    vectors = InductivePropagation(model, data, SETTINGS).scorer()
    observed, count = data.inference.triples, data.inference.num_nodes
    walk = LogProximity(observed, count)
    both = add_proximity(vectors, walk, near, observed, data.train.triples, data.num_relations)
    found = evaluate(both.score_tails, both.score_heads, data.test, inference_filter(data))
    row = rows[expected[-3 if share else -2], "full"]
    assert row["metrics"]["mrr"] == pytest.approx(found.metrics("full")["mrr"])
    # It is marked as the propagation is.
    assert rows[expected[-3 if share else -2], "merged"]["mark"]
    assert with_episodes is ("mark" not in rows[names[0], "merged"])


def test_the_baselines_have_the_usual_walk(monkeypatch):
    data = toy_data("fully-inductive")
    model = trained("rotate", data)
    found = []
    for near in (None, ProximitySettings(teleport=0.6), ProximitySettings(num_iterations=1)):
        rows = rank_completion(model, data, SETTINGS, proximity=near, progress=False).rows
        found.append([row for row in rows if row["method"] in (PROXIMITY, FILTERED_PROXIMITY)])
    assert len(found[0]) == 4
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("near", "walks"),
    [
        (None, False),
        (ProximitySettings(share=0.0, weight=0.5), False),
        (ProximitySettings(share=0.0, frequency=0.2), False),
        (ProximitySettings(share=0.1), True),
    ],
)
@pytest.mark.parametrize("with_episodes", [False, True])
def test_large_graphs_have_walks_only_where_a_score_needs_them(
    near, walks, with_episodes, monkeypatch
):
    data = toy_data("fully-inductive")
    model = trained("rotate", data)
    episodes = None
    if with_episodes:
        episodes = short_episodes(model, data)
        near = None if near is None else replace(near, weight=0.5 if near.weight == 0.5 else 0.0)
        walks |= near is not None and near.weight > 0
    monkeypatch.setattr("sheafprop.inductive.proximity_scorer._MOST_PRODUCTS", 1.0)
    if not walks:
        monkeypatch.setattr(LogProximity, "probabilities", lambda *_: 1 / 0)
    given = dict(episodes=episodes, proximity=near, progress=False)
    result = rank_completion(model, data, SETTINGS, **given)
    assert any(row["method"] == PROXIMITY for row in result.rows) is walks
    assert ("proximity is ranked only" in result.protocols["full"]) is not walks


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_merged_figures_with_vectors_that_validation_chose_are_marked(share):
    """The score of episodes alone has no choice on validation; that of propagated vectors has."""
    data = toy_data("semi-inductive")
    model = trained("rotate", data)
    episodes = short_episodes(model, data, vector_share=share)
    for selected in (True, False):
        result = rank_completion(
            model,
            data,
            SETTINGS,
            episodes=episodes,
            proximity=ProximitySettings(),
            protocols=["merged"],
            selected=selected,
            progress=False,
        )
        for row in result.rows:
            if "+ episodes" in row["method"]:
                assert ("mark" in row) == (selected and share > 0), row["method"]


def walking(model, data, **settings):
    """Episodes whose walk prefers relations, differently for each query."""
    episodes = short_episodes(model, data, walk_steps=1, **settings)
    with torch.no_grad():
        episodes.log_walk += torch.randn(6, 3, generator=torch.Generator().manual_seed(1)) * 2
    return episodes


def scores_by_method(model, data, episodes, peers=0.0, queries=None):
    """Scores of all entities at the ends of test triples, or of others, by method."""
    head, relation, tail = (data.test if queries is None else queries).unbind(1)
    found = []

    def watch(score_tails, score_heads, *given, **named):
        found.append(torch.cat([score_tails(head, relation), score_heads(relation, tail)]))
        return evaluate(score_tails, score_heads, *given, **named)

    near = ProximitySettings(weight=0.5, share=0.2, own_last=False, peers=peers)
    chosen = dict(episodes=episodes, proximity=near, protocols=["full"], progress=False)
    rows = rank_completion(model, data, SETTINGS, rank=watch, **chosen).rows
    return dict(zip((row["method"] for row in rows), found, strict=True))


@pytest.mark.parametrize(("mode", "share"), [("semi-inductive", 1.0), ("fully-inductive", 0.0)])
def test_the_walk_by_relation_is_a_part_of_the_row_with_episodes_alone(mode, share):
    data = toy_data(mode)
    model = trained("rotate", data)
    episodes = walking(model, data, vector_share=share)
    rows = scores_by_method(model, data, episodes)
    log_weight, episodes.log_walk = episodes.log_walk.detach(), None
    plain = scores_by_method(model, data, episodes)
    assert list(rows) == list(plain)
    first, *others = rows
    assert first == "RotatE + episodes + proximity"
    for method in others:
        assert torch.equal(rows[method], plain[method]), method
    # By the definition, on the observed triples of the inference graph.
    observed, count = data.inference.triples, data.inference.num_nodes
    head, relation, tail = data.test.unbind(1)
    near = []
    for entity, query in zip(
        torch.cat([head, tail]).tolist(), torch.cat([relation, relation + 3]).tolist(), strict=True
    ):
        weight = log_weight[query].exp()[observed[:, 1]]
        one = torch.tensor([entity])
        near += [proximity(observed[:, [0, 2]].T, count, one, edge_weight=weight)[0]]
    expected = rows["RotatE + episodes"] + 0.5 * torch.log(torch.stack(near) + 1e-6)
    torch.testing.assert_close(rows[first], expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(rows[first], plain[first], atol=0.1)


def test_triples_to_predict_are_no_part_of_any_walk():
    data = toy_data("fully-inductive")
    model = trained("rotate", data)
    episodes = walking(model, data)
    rows = scores_by_method(model, data, episodes, 0.5, data.test)
    other = replace(data, valid=data.valid[:1], test=data.test[:1])
    assert len(other.valid) < len(data.valid)
    assert len(other.test) < len(data.test)
    for method, found in scores_by_method(model, other, episodes, 0.5, data.test).items():
        assert torch.equal(found, rows[method]), method


def names(found):
    return [name.partition(", ")[2] or name for name in found]


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_which_baselines_there_are(mode):
    data = toy_data(mode)
    near = LogProximity(data.inference.triples, data.inference.num_nodes)
    mean = [f"{MEAN}"] if mode == "semi-inductive" else []
    found = baselines(trained("rotate", data), data, near)
    assert [n.rpartition(", ")[2] for n in names(found)] == [
        "random vectors (no propagation)",
        *[m.rpartition(", ")[2] for m in mean],
        "edge-type heuristic",
        PROXIMITY,
        FILTERED_PROXIMITY,
    ]
    assert PROXIMITY not in baselines(trained("rotate", data), data, None)
    peers = baselines(trained("rotate", data), data, near, peers=0.5)
    assert list(peers)[:-1] == list(found)
    head, relation = data.test[:, 0], data.test[:, 1]
    expected = near(head, relation, "tail") + 0.5 * near.peers(head, relation, "tail")
    torch.testing.assert_close(peers[PEERS].score_tails(head, relation), expected)


def test_the_mean_of_messages_is_that_of_known_neighbours():
    data = toy_data("semi-inductive")
    model = trained("rotate", data)
    found = baselines(model, data, None)
    (scorer,) = (one for name, one in found.items() if MEAN in name)
    known = data.boundary_mask
    x = model.entity_vectors().detach()[data.boundary_source.clamp_min(0)]
    x = torch.where(known.unsqueeze(1), x, 0)
    turn = torch.polar(torch.ones_like(model.rel_emb.weight), model.rel_emb.weight).detach()
    total = torch.zeros_like(x)
    for head, relation, tail in data.inference.triples.tolist():
        total[tail] += x[head] * turn[relation]
        total[head] += x[tail] * turn[relation].conj()
    length = torch.linalg.vector_norm(total, dim=1, keepdim=True)
    expected = torch.where(known.unsqueeze(1), x, total / length.clamp_min(1e-12))
    head, relation = torch.arange(4), torch.zeros(4, dtype=torch.long)
    torch.testing.assert_close(
        scorer.score_tails(head, relation),
        model.score_tails(expected, head, relation),
        rtol=1e-4,
        atol=1e-5,
    )
