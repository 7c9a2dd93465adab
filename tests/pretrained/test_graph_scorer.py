"""Models with episodes and proximity: every method scores by them, also after a round trip."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop import SheafModel
from sheafprop.errors import DivergenceError
from sheafprop.inductive.answer_counts import AnswerCounts
from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.episode_scorer import EpisodeScorer, WithVectors, score_spread
from sheafprop.inductive.proximity_scorer import LogProximity, ProximitySettings
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.nn import proximity
from sheafprop.pretrained.graph_scorer import SPREAD, LinkScores, spread_temperature
from tests.pretrained.models import FACTS, sheaf_model, stored_model


def with_episodes(kind="rotate", near=None, episodes=True, share=0.7, walk_steps=0):
    stored = stored_model(kind, dtype=torch.float32)
    if episodes:
        more = {"vector_share": share, "walk_steps": walk_steps}
        settings = EpisodeSettings(num_random=3, counts=True, **more)
        model = EpisodeModel(stored.model, stored.prototypes.mean, settings)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.trained_parameters().values():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
            if model.log_walk is not None:
                model.log_walk += 2 * torch.randn(model.log_walk.shape, generator=generator)
        stored = replace(stored, episodes=model.eval())
    return SheafModel(replace(stored, proximity=near))


def ids(model, frame):
    place = {label: i for i, label in enumerate(model.labels())}
    relation = {label: i for i, label in enumerate(model.relations.labels)}
    rows = [(place[h], relation[r], place[t]) for h, r, t in frame.itertuples(index=False)]
    return torch.tensor(rows)


def expected_scores(model, head, relation, weight=0.0):
    """All tails of one query, from the definition."""
    stored = model.stored()
    facts = ids(model, model.facts())
    scorer = EpisodeScorer(stored.episodes, facts, model.labels(), stored.settings.get("seed", 0))
    one = torch.tensor([model.labels().index(head)])
    kind = torch.tensor([model.relations.labels.index(relation)])
    if stored.episodes.settings.vector_share:
        vectors = SectionScorer(model.kge, model.vectors(), (1.0,), model.labels())
        scorer = WithVectors(scorer, vectors, stored.episodes.settings.vector_share, facts)
    scores = scorer.score_tails(one, kind)[0]
    if weight:
        walk, edges = stored.episodes.log_walk, facts[:, [0, 2]].T
        edge_weight = None if walk is None else walk[kind[0]].detach().exp()[facts[:, 1]]
        near = proximity(edges, len(model.labels()), one, edge_weight=edge_weight)[0]
        scores = scores + weight * torch.log(near + 1e-6)
    return scores, int(one)


@pytest.mark.parametrize("share", [0.0, 1.5])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_predictions_are_those_of_episodes_vectors_and_proximity(weight, share):
    near = ProximitySettings(weight=weight, own_last=False) if weight else None
    model = with_episodes(near=near, share=share)
    head, relation, _ = model.facts().iloc[0]
    frame = model.predict_tails(head, relation, k=len(model.labels()), include_known=True)
    scores, _ = expected_scores(model, head, relation, weight)
    order = scores.argsort(descending=True)
    assert list(frame["tail"]) == [model.labels()[i] for i in order]
    assert list(frame["score"]) == pytest.approx(scores[order].tolist(), rel=1e-5)


def test_peers_are_a_part_of_predictions_also_of_a_saved_model(tmp_path):
    near = ProximitySettings(weight=0.7, peers=0.4, own_last=False)
    model = with_episodes(near=near)
    model.save(tmp_path / "model")
    facts = ids(model, model.facts())
    head, relation, _ = model.facts().iloc[0]
    scores, own = expected_scores(model, head, relation, 0.7)
    kind = model.relations.labels.index(relation)
    near = LogProximity(facts, len(model.labels()))
    peers = near.peers(torch.tensor([own]), torch.tensor([kind]), "tail")[0]
    assert len(peers.unique()) > 1
    scores = scores + 0.7 * 0.4 * peers
    for one in (model, SheafModel.load(tmp_path / "model")):
        frame = one.predict_tails(head, relation, k=len(model.labels()), include_known=True)
        found = dict(zip(frame["tail"], frame["score"], strict=True))
        assert [found[label] for label in model.labels()] == pytest.approx(scores.tolist())
    bare = model.with_scores(proximity=0.0, own_last=False)
    assert bare.stored().proximity is None


def tail_scores(model, head, relation):
    every = model.predict_tails(head, relation, k=len(model.labels()), include_known=True)
    found = dict(zip(every["tail"], every["score"], strict=True))
    return [found[label] for label in model.labels()]


def test_walks_by_relation_are_a_part_of_predictions_also_of_a_saved_and_an_extended_model(
    tmp_path,
):
    near = ProximitySettings(weight=0.7, own_last=False)
    model = with_episodes(near=near, walk_steps=4)
    again = SheafModel.load(model.save(tmp_path / "model"))
    walk = model.stored().episodes.log_walk
    assert torch.equal(again.stored().episodes.log_walk, walk)
    assert again.stored().episodes.settings.walk_steps == 4
    grown = again.extend(FACTS)
    head, relation, _ = model.facts().iloc[0]
    plain = with_episodes(near=near)
    for one in (model, again, grown, grown.remove("n0"), grown.remove("n0").remove("n1")):
        expected, _ = expected_scores(one, head, relation, 0.7)
        assert tail_scores(one, head, relation) == pytest.approx(expected.tolist(), rel=1e-5)
    gap = np.subtract(tail_scores(model, head, relation), tail_scores(plain, head, relation))
    assert np.ptp(gap) > 0.1
    # Nothing of it is left without episodes or without proximity.
    for changes in ({"episodes": False}, {"proximity": 0.0, "own_last": False}):
        one, other = model.with_scores(**changes), plain.with_scores(**changes)
        assert tail_scores(one, head, relation) == tail_scores(other, head, relation)


def test_walks_by_relation_score_rank_and_answer():
    model = with_episodes(near=ProximitySettings(weight=0.7), walk_steps=4, share=0.0)
    plain = with_episodes(near=ProximitySettings(weight=0.7), share=0.0)
    head, relation, tail = triple = tuple(model.facts().iloc[1])
    every = {"k": len(model.labels()), "include_known": True}
    tails = model.predict_tails(head, relation, **every).set_index("tail")["score"]
    heads = model.predict_heads(relation, tail, **every).set_index("head")["score"]
    other = plain.predict_heads(relation, tail, **every).set_index("head")["score"]
    assert not np.allclose(heads, other[heads.index], atol=0.1)
    (found,) = model.score([triple])["score"]
    assert found == pytest.approx((tails[tail] + heads[head]) / 2, rel=1e-5)
    truth = predicted(model, head, relation)
    gap = np.log(truth) - tails[truth.index]
    assert len(gap) > 5
    np.testing.assert_allclose(gap, gap.mean(), atol=1e-4)
    # The energies of an explanation have no walk.
    pd.testing.assert_frame_equal(model.explain(head), plain.explain(head))


def test_weights_of_the_walk_that_are_not_finite_are_refused():
    stored = with_episodes(walk_steps=4).stored()
    with torch.no_grad():
        stored.episodes.log_walk[0, 1] = float("inf")
    with pytest.raises(DivergenceError, match="episodes is not finite"):
        replace(stored)


def test_the_own_entity_is_last_where_no_fact_is_a_loop():
    model = with_episodes(near=ProximitySettings(weight=0.4))
    facts = model.facts()
    loops = set(facts[facts["head"] == facts["tail"]]["relation"])
    for relation in model.relations.labels:
        head = facts["head"].iloc[0]
        frame = model.predict_tails(head, relation, k=len(model.labels()), include_known=True)
        if relation not in loops:
            assert frame["tail"].iloc[-1] == head


def test_score_is_the_mean_over_both_sides():
    model = with_episodes(near=ProximitySettings(weight=0.3))
    head, relation, tail = model.facts().iloc[1]
    every = {"k": len(model.labels()), "include_known": True}
    tails = model.predict_tails(head, relation, **every).set_index("tail")["score"]
    heads = model.predict_heads(relation, tail, **every).set_index("head")["score"]
    (found,) = model.score([(head, relation, tail)])["score"]
    assert found == pytest.approx((tails[tail] + heads[head]) / 2, rel=1e-5)


def test_new_entities_take_part_and_order_of_extension_does_not_matter():
    model = with_episodes(share=0.0)  # vectors depend on it
    head, relation, tail = model.facts().iloc[2]
    facts = [
        ("new one", relation, tail),
        ("new two", relation, "new one"),
        (head, relation, "new two"),
    ]
    once = model.extend(facts)
    twice = model.extend(facts[:1]).extend(facts[1:])
    frame = once.predict_tails("new one", relation, k=50)
    again = twice.predict_tails("new one", relation, k=50)
    one = frame.set_index("tail")["score"].to_dict()
    other = again.set_index("tail")["score"].to_dict()
    assert one.keys() == other.keys()
    assert [one[name] for name in one] == pytest.approx([other[name] for name in one], rel=1e-4)
    scores, _ = expected_scores(once, "new one", relation)
    assert one[head] == pytest.approx(float(scores[once.labels().index(head)]), rel=1e-5)


def test_explanations_are_energies_of_the_episodes():
    model = with_episodes()
    facts = ids(model, model.facts())
    episodes = model.stored().episodes
    graph = EpisodeScorer(episodes, facts, model.labels(), model.settings.get("seed", 0)).graph
    with torch.no_grad():
        energy = episodes.energy(graph, *facts.unbind(1))
    label = model.facts()["head"].iloc[0]
    frame = model.explain(label)
    own = ids(model, frame[["head", "relation", "tail"]])
    rows = {tuple(t): float(e) for t, e in zip(facts.tolist(), energy, strict=True)}
    assert list(frame["energy"]) == pytest.approx([rows[tuple(t)] for t in own.tolist()], rel=1e-5)
    mean = {
        r: sum(e for t, e in rows.items() if t[1] == r) / sum(t[1] == r for t in rows)
        for r in set(own[:, 1].tolist())
    }
    expected = [rows[tuple(t)] / mean[t[1]] for t in own.tolist()]
    assert list(frame["ratio"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("episodes", [True, False])
@pytest.mark.parametrize("kind", ["rotate", "se"])
def test_a_saved_model_scores_the_same(kind, episodes, tmp_path):
    model = with_episodes(kind, ProximitySettings(weight=0.2, share=0.6), episodes)
    state = torch.random.get_rng_state()
    again = SheafModel.load(model.save(tmp_path / "model"))
    assert torch.equal(torch.random.get_rng_state(), state)  # loading draws nothing
    head, relation, tail = model.facts().iloc[0]
    assert again.stored().proximity == ProximitySettings(weight=0.2, share=0.6)
    one, other = (m.predict_tails(head, relation, k=5) for m in (model, again))
    assert list(one["tail"]) == list(other["tail"])
    assert list(one["score"]) == pytest.approx(list(other["score"]), rel=1e-5)
    triple = [(head, relation, tail)]
    assert model.rank(triple).metrics("full") == again.rank(triple).metrics("full")
    plain = SheafModel(replace(model.stored(), episodes=None, proximity=None))
    assert not plain.predict_tails(head, relation, k=5).equals(one)


def test_ranks_are_those_of_the_scores():
    model = with_episodes(near=ProximitySettings(weight=0.5))
    triples = model.facts().iloc[:4].to_numpy().tolist()
    result = model.rank(triples)
    known = {tuple(row) for row in model.facts().to_numpy().tolist()}
    scorer = model.scorer()
    better = []
    for head, relation, tail in triples:
        row = scorer.score_tails(
            torch.tensor([model.labels().index(head)]),
            torch.tensor([model.relations.labels.index(relation)]),
        )[0]
        own = row[model.labels().index(tail)]
        others = [
            i for i, label in enumerate(model.labels()) if (head, relation, label) not in known
        ]
        better.append(int((row[others] > own).sum()))
    assert result.counts["tail"].better.tolist() == better


def test_refuses_parameters_that_are_not_finite():
    stored = with_episodes().stored()
    broken = EpisodeModel.from_stored(stored.model, stored.episodes.stored())
    with torch.no_grad():
        broken.log_weight[0] = float("nan")
    with pytest.raises(Exception, match="episodes is not finite"):
        replace(stored, episodes=broken)


def test_scores_can_leave_out_episodes_and_proximity():
    model = with_episodes(near=ProximitySettings(weight=0.6))
    head, relation, _ = model.facts().iloc[0]

    def scores(one):
        frame = one.predict_tails(head, relation, k=50, include_known=True)
        return frame.set_index("tail")["score"].to_dict()

    plain = SheafModel(stored_model("rotate", dtype=torch.float32))
    without = model.with_scores(episodes=False, proximity=0.0, own_last=False)
    assert scores(without) == pytest.approx(scores(plain), rel=1e-5)
    bare = model.with_scores(proximity=0.0, own_last=False)
    assert scores(bare) == pytest.approx(scores(with_episodes()), rel=1e-5)
    assert list(scores(model.with_scores(proximity=0.0)))[-1] == head
    near = proximity(ids(model, model.facts())[:, [0, 2]].T, len(model.labels()))
    row = torch.log(near[model.labels().index(head)] + 1e-6)
    heavier = scores(model.with_scores(proximity=2.0, own_last=False))
    for tail, score in scores(bare).items():
        expected = score + 2.0 * float(row[model.labels().index(tail)])
        assert heavier[tail] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert scores(model.with_scores()) == scores(model)
    with pytest.raises(ValueError, match="negative"):
        model.with_scores(proximity=-1.0)


def test_an_inverse_relation_asks_for_heads():
    asked = []

    def scores(entity, relation, side):
        asked.append((entity.tolist(), relation.tolist(), side))
        return torch.zeros(len(entity), 4)

    links = LinkScores(scores)
    links.score_links(torch.tensor([2, 0]), 1, inverse=False)
    links.score_links(torch.tensor([3]), 0, inverse=True)
    assert asked == [([2, 0], [1, 1], "tail"), ([3], [0], "head")]


def test_scores_of_any_unit_are_brought_to_one_spread():
    table = torch.randn(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    queries = torch.tensor([[0, 0], [1, 0], [2, 0]])
    for unit in (1e-20, 1e-3, 1.0, 40.0):
        beta = spread_temperature(lambda e, r, s, unit=unit: unit * table[e], queries)
        deviation = (beta * unit * table).std(1, correction=0).mean()
        assert float(deviation) == pytest.approx(SPREAD)
    for unit in (1e-9, 1.0, 1e9):
        alike = unit * (1 + 1e-16 * table.sign())  # but for rounding
        assert spread_temperature(lambda e, r, s, alike=alike: alike[e], queries) == 1.0
    assert spread_temperature(lambda e, r, s: torch.ones(len(e), 1), queries) == 1.0
    assert spread_temperature(lambda e, r, s: table[e], queries[:0]) == 1.0


def predicted(model, head, relation):
    """Truths of predicted answers by entity."""
    frame = model.answer(f"via({relation}, {head})", model.num_entities)
    return frame[frame["truth"] < 0.999].set_index("answer")["truth"]


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.9])
def test_proximity_counts_once(weight):
    """Ratios of probabilities are those of the model's own scores, proximity included."""
    near = ProximitySettings(share=weight, own_last=False) if weight else None
    model = with_episodes(episodes=False, near=near).extend(FACTS)
    plain = model.with_scores(proximity=0)
    found, bare = predicted(model, "n0", "far"), predicted(plain, "n0", "far")
    both = found.index.intersection(bare.index)
    labels = list(model.labels())
    facts = ids(model, model.facts())
    pi = proximity(facts[:, [0, 2]].T, len(labels), torch.tensor([labels.index("n0")]))[0]
    near = torch.log(pi + 1e-6).numpy()[[labels.index(label) for label in both]]
    unit = weight * score_spread(plain.scorer(), facts)
    beta = float(model._state.links.temperature[0])
    gap = np.log(found[both]) - np.log(bare[both]) - beta * unit * near
    assert len(both) > 5
    assert weight == 0 or np.ptp(beta * unit * near) > 0.5
    np.testing.assert_allclose(gap, gap.mean(), atol=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_the_frequency_of_answers_is_that_of_all_facts(tmp_path, share):
    near = ProximitySettings(weight=0.0, share=share, frequency=0.6, own_last=False)
    small = with_episodes(episodes=False, near=near)
    model = small.extend(FACTS)
    model.save(tmp_path / "model")
    plain = model.with_scores(proximity=0, own_last=False)
    assert plain.stored().proximity is None
    labels = model.labels()
    facts = ids(model, model.facts())
    one, kind = torch.tensor([labels.index("n0")]), torch.tensor([1])
    answers = AnswerCounts(facts, len(labels), len(model.relations))(kind, "tail")
    before = ids(small, small.facts())
    without = AnswerCounts(before, len(small.labels()), len(model.relations))(kind, "tail")
    assert not torch.equal(answers[:, : without.shape[1]], without)
    walk = LogProximity(facts, len(labels))(one, kind, "tail")
    unit = score_spread(plain.scorer(), facts)
    expected = plain.scorer().score_tails(one, kind) + unit * (0.6 * answers + share * walk)
    for each in (model, SheafModel.load(tmp_path / "model")):
        assert each.stored().proximity == near
        found = each.scorer().score_tails(one, kind)
        torch.testing.assert_close(found, expected.to(found), rtol=1e-4, atol=1e-4)
    kept = model.with_scores(proximity=0.9).stored().proximity
    assert (kept.share, kept.frequency) == (0.9, 0.6)
    last = model.with_scores(proximity=0, own_last=True).stored().proximity
    assert (last.share, last.frequency, last.own_last) == (0.0, 0.0, True)
    assert small.with_scores(own_last=False).stored().proximity == near


def test_scores_of_episodes_are_logarithms_already():
    model = with_episodes(share=0.0)
    found = predicted(model, "a0", "far")
    scores = model.predict_tails("a0", "far", 99, include_known=True).set_index("tail")["score"]
    gap = np.log(found) - scores[found.index]
    np.testing.assert_allclose(gap, gap.mean(), atol=1e-4)


def test_a_model_of_one_spread_answers_alike_in_single_precision():
    wide = sheaf_model("rotate").extend(FACTS)
    single = sheaf_model("rotate", dtype=torch.float32).extend(FACTS)
    query = "via(far, via(next, n0))"
    one, other = (model.answer(query, 99).set_index("answer")["truth"] for model in (wide, single))
    np.testing.assert_allclose(one, other[one.index], rtol=1e-3)
