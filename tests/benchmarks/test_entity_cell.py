"""Queries over entities in the benchmark: what links may know, what is chosen, what is kept."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import entity_cell
from benchmarks.entity_cell import (
    GRID,
    KeptResults,
    TrainedCell,
    climb,
    compare_settings,
    criterion,
    figures,
    rank_in_parts,
    run_entities,
    standard_error,
)
from benchmarks.entity_links import EntitySettings, ObservedLinks, scorer_of_sections
from benchmarks.presets import query_config
from benchmarks.query_cell import TYPES
from benchmarks.query_sampling import sample_queries
from benchmarks.query_split import inductive_query_split
from benchmarks.query_task import QueryTask
from benchmarks.tables.query_tables import NEGATION, entity_summary, entity_table

from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.pretrained.graph_scorer import ByVectors
from sheafprop.query import QueryRanking, structure
from sheafprop.ranking import RankCounts
from sheafprop.report.tables import NOTHING
from tests.benchmarks.test_query_split import triples
from tests.benchmarks.test_query_task import PART, SETTINGS, built, other_triples


@pytest.fixture(scope="module")
def data():
    whole = inductive_query_split(triples(700, 80), train_fraction=0.5, seed=1)
    wanted = dict.fromkeys((*TYPES, *NEGATION), 12)
    return sample_queries(whole, {"valid": wanted, "test": wanted}, seed=1)


def links_of(data, split):
    task = QueryTask(data, split, inverse_relations=False)
    return ObservedLinks(task, built(task), SETTINGS)


def rows_of(data, split, settings=EntitySettings(proximity=0.7)):  # noqa: B008
    """Rows of some entities, their columns in the ids of the data set."""
    links = links_of(data, split)
    rows, entities = links.scorer(settings).links, links.place[data.candidates(split)[::3]]
    own = torch.stack([rows.log_rows(entities, q) for q in range(2 * len(data.relations))])
    out = own.new_full((*own.shape[:2], len(links.place)), -torch.inf)
    out[:, :, links.place >= 0] = own[:, :, links.place[links.place >= 0]]
    return out


@pytest.mark.parametrize("split", ["valid", "test"])
def test_facts_and_counts_are_those_of_the_observed_graph(data, split):
    graphs = {**data.graphs, f"{PART[split]}_predict": other_triples(data, split)}
    rows = rows_of(data, split)
    assert torch.equal(rows, rows_of(replace(data, graphs=graphs), split))
    other = "test" if split == "valid" else "valid"
    graphs = {**data.graphs, f"{PART[other]}_inference": other_triples(data, other)}
    assert torch.equal(rows, rows_of(replace(data, graphs=graphs), split))
    # What is observed is certain, what is to be predicted is not.
    entities = data.candidates(split)[::3].tolist()
    observed = {tuple(t) for t in data.observed(split).tolist()}
    predict = data.graphs[f"{PART[split]}_predict"].tolist()
    for head, relation, tail in [*observed, *predict]:
        if head in entities:
            known = float(rows[relation, entities.index(head), tail]) == 0
            assert known == ((head, relation, tail) in observed)


def test_without_facts_and_without_proximity_are_rows_of_their_own(data):
    whole = rows_of(data, "valid")
    bare = rows_of(data, "valid", EntitySettings(facts=False, proximity=0.7))
    assert (whole == 0).any()
    assert not (bare == 0).any()
    far = rows_of(data, "valid", EntitySettings(proximity=0.0))
    assert (far == 0).sum() == (whole == 0).sum()
    assert not torch.allclose(far[far > -99], whole[far > -99])


def test_an_entity_leads_to_itself_where_the_training_graph_has_loops_alone(data):
    train = data.graphs["train_graph"].clone()
    own = train[:, 0] == train[:, 2]
    train[own, 2] = (train[own, 0] + 1) % 40
    train[train[:, 1] == 1] = torch.tensor([3, 1, 3])
    graphs = {**data.graphs, "train_graph": train}
    rows = rows_of(replace(data, graphs=graphs), "valid", EntitySettings(facts=False))
    entities = data.candidates("valid")[::3]
    itself = rows[:, torch.arange(len(entities)), entities] > -torch.inf
    number = len(data.relations)
    assert itself.any(1).nonzero().flatten().tolist() == [1, 1 + number]
    assert itself[[1, 1 + number]].all()


def test_an_inverse_relation_of_its_own_is_its_own(data):
    plain = QueryTask(data, "valid", inverse_relations=False)
    own = QueryTask(data, "valid", inverse_relations=True)
    for task, expected in ((plain, "score_heads"), (own, "score_tails")):
        links = ObservedLinks(task, built(task), SETTINGS)
        links.scorer(EntitySettings())
        asked = []

        def ask(*arguments, name=expected, links=links, asked=asked):
            asked.append(arguments)
            return getattr(type(links._scorer), name)(links._scorer, *arguments)

        setattr(links._scorer, expected, ask)
        links.score_links(torch.tensor([4, 2]), 1, True)
        kind = asked[0][0 if expected == "score_heads" else 1]
        label = data.relations.labels[1]
        wanted = label if task is plain else data.inverse_label(label)
        assert task.completion.train.relations.labels[int(kind[0])] == wanted


def test_sections_are_scored_together_where_energies_add(data):
    task = QueryTask(data, "valid", inverse_relations=False)
    model = built(task)
    x = model.draw_entities([str(i) for i in range(9)], 0, 3)
    weight, ids = (0.5, 0.3, 0.2), torch.tensor([2, 5])
    for squared in (False, True):
        model.squared = squared
        scorer = scorer_of_sections(model, x, weight)
        assert isinstance(scorer, ByVectors if squared else SectionScorer)
        kinds = torch.tensor([1, 0])
        wanted = [a * model.score_tails(x[:, i], ids, kinds) for i, a in enumerate(weight)]
        assert torch.allclose(scorer.score_tails(ids, kinds), sum(wanted), atol=1e-5)
        wanted = [a * model.score_heads(x[:, i], kinds, ids) for i, a in enumerate(weight)]
        assert torch.allclose(scorer.score_heads(kinds, ids), sum(wanted), atol=1e-5)


def test_settings_share_scores_of_the_same_vectors_alone(data):
    links, asked = links_of(data, "valid"), []
    compute = links._score_links
    links._score_links = lambda *key: asked.append(key) or compute(*key)
    ids = torch.tensor([4, 2, 7])
    for keep in (2**20, 2 * links.count):  # all of them fit, or one
        links.scorer(EntitySettings(proximity=0.1), keep=keep)
        whole = links.score_links(ids, 1, True)
        assert torch.allclose(whole, compute(ids, 1, True), atol=1e-2)
        asked.clear()
        links.scorer(EntitySettings(proximity=0.2, temperature=9.0), keep=keep)
        again = links.score_links(ids[[2, 0]], 1, True)
        assert torch.allclose(again, whole[[2, 0]], atol=1e-5)
        assert len(asked) == (keep < 2**20)
        links.score_links(ids, 1, False)
        links.scorer(EntitySettings(iterations=3), keep=keep)
        asked.clear()
        assert not torch.allclose(links.score_links(ids, 1, True), whole, atol=1e-2)
        assert asked
    # Without, nothing is rounded.
    links.scorer(EntitySettings())
    assert torch.equal(links.score_links(ids, 1, True), compute(ids, 1, True))


def test_the_steps_that_rank_best_are_chosen_and_kept(data, tmp_path, monkeypatch):
    cell = object.__new__(TrainedCell)
    cell.kept, links = KeptResults(tmp_path), links_of(data, "valid")
    cell.valid = links.task
    monkeypatch.setattr(TrainedCell, "links", lambda self, task: links)
    monkeypatch.setattr(entity_cell, "ITERATIONS", (1, 3))
    monkeypatch.setattr(
        entity_cell, "criterion", lambda _, one: -abs(one.proximity - 0.62) - one.temperature
    )
    chosen = cell.settings(8)
    tried = [replace(EntitySettings(), iterations=count) for count in (1, 3)]
    found = [value for _, value in compare_settings(links, tried, 8, ("1p",))]
    assert chosen == replace(tried[found[1] > found[0]], proximity=0.65, temperature=0.9)
    assert cell.kept["tried settings"]["proximity 0.65, temperature 1.8"] == pytest.approx(-1.83)
    # A second call asks nothing again; what is missing is asked for.
    monkeypatch.setattr(QueryTask, "rank", None)
    monkeypatch.setattr(entity_cell, "criterion", lambda _, one: one.temperature)
    cell.kept = KeptResults(tmp_path)
    assert cell.settings(8) == chosen
    del cell.kept["tried settings"]["proximity 0.65, temperature 1.3"]
    assert cell.settings(8) == replace(chosen, temperature=1.3)


@pytest.mark.parametrize("start", [(0.5, 2.5), (0.0, 5.0), (1.5, 0.9)])
def test_the_climb_ends_where_no_neighbour_is_better(start):
    asked = {}

    def judge(one):
        # A ridge that no single option follows to its end at once.
        value = -((one.proximity - one.temperature / 9) ** 2) - 0.01 * (one.temperature - 3.4) ** 2
        return asked.setdefault(one, value)

    best = climb(EntitySettings(proximity=start[0], temperature=start[1]), judge)
    for option, values in GRID.items():
        place = values.index(getattr(best, option))
        for value in values[max(place - 1, 0) : place + 2]:
            assert judge(replace(best, **{option: value})) <= judge(best)
    assert (best.proximity, best.temperature) == (0.4, 3.5)
    assert len(asked) < len(GRID["proximity"]) * len(GRID["temperature"]) / 2
    # Of equal ones the first stays.
    assert climb(EntitySettings(), lambda one: 0.5) == EntitySettings()


def test_the_criterion_is_the_mean_over_all_types(data, monkeypatch):
    monkeypatch.setattr(entity_cell, "SELECTION", (10, 2))
    links, one = links_of(data, "valid"), EntitySettings(proximity=0.2)
    values = []
    for kind in (*TYPES, *NEGATION):
        most = 2 if kind in ("2p", "3p", "pi", "ip", "up", "inp", "pin", "pni") else 10
        ranking = links.task.rank(links.scorer(one), kind, most)
        assert ranking.num_queries <= most
        if len(ranking.counts):
            metrics = ranking.metrics("macro")
            values.append(metrics["mrr"] + metrics["hits@10"])
    assert criterion(links, one) == pytest.approx(sum(values) / len(values), abs=2e-2)


def test_ranks_of_parts_are_those_of_all_queries_and_are_kept(data, tmp_path, monkeypatch):
    links = links_of(data, "test")
    scorer = links.scorer(EntitySettings())
    whole = links.task.rank(scorer, "2p", 7)
    monkeypatch.setattr(entity_cell, "_PART", 3)
    for _ in range(2):  # the second time from what is kept
        parts = rank_in_parts(links.task, scorer, "2p", 7, tmp_path)
        assert torch.equal(parts.query, whole.query)
        assert torch.equal(parts.counts.better, whole.counts.better)
        assert torch.equal(parts.counts.candidates, whole.counts.candidates)
        assert (parts.num_queries, parts.num_candidates) == (7, whole.num_candidates)
        monkeypatch.setattr(QueryTask, "rank", None)
    assert len(list(tmp_path.iterdir())) == 3


def walk_truth(shape, slots, p):
    """The truths of all entities, by tables of links ``[2R, N, N]``."""
    if shape.operator == "anchor":
        return np.eye(p.shape[1])[slots[0]]
    parts = [
        walk_truth(branch, slots[own], p)
        for branch, own in zip(shape.branches, shape.branch_slots, strict=True)
    ]
    if shape.operator == "via":
        return (parts[0][:, None] * p[slots[-1]]).max(0)
    if shape.operator == "not":
        return 1 - parts[0]
    return math.prod(parts) if shape.operator == "and" else 1 - math.prod(1 - t for t in parts)


def table_of_links(links, data, split, one):
    """The same by the formula from propagated vectors, dense walks and facts, in the ids of the
    data set; NaN for entities of the other split."""
    task, model, place = links.task, links.model, links.place
    x = InductivePropagation(model, task.completion, SETTINGS).vectors(one.iterations)
    observed, n = data.observed(split).tolist(), links.count
    near = np.zeros((n, n))
    for head, _, tail in observed:
        if head != tail:
            near[place[head], place[tail]] += 1
            near[place[tail], place[head]] += 1
    walk = near / near.sum(1, keepdims=True)
    near = np.eye(n)
    for _ in range(20):
        near = 0.15 * np.eye(n) + 0.85 * near @ walk
    number, every = len(data.relations), torch.arange(n)
    loops = {r for h, r, t in data.graphs["train_graph"].tolist() if h == t}
    p = np.full((2 * number, len(place), len(place)), np.nan)
    own = (place >= 0).numpy()
    to = place[own].numpy()
    for q in range(2 * number):
        kinds = torch.full((n,), int(task.relations[q % number]))
        parts = [
            weight * (model.score_tails(x[:, i], every, kinds) if q < number else
                      model.score_heads(x[:, i], kinds, every))
            for i, weight in enumerate(SETTINGS.section_weight)
        ]  # fmt: skip
        score = sum(parts).detach().double().numpy() * one.temperature
        score += one.proximity * np.log(near + 1e-6)
        if q % number not in loops:
            np.fill_diagonal(score, -np.inf)
        share = np.exp(score - score.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        facts = {
            (int(place[t]), int(place[h])) if q >= number else (int(place[h]), int(place[t]))
            for h, r, t in observed
            if r == q % number
        }
        count = np.bincount([u for u, _ in facts], minlength=n)
        table = np.minimum(0.999, np.maximum(1, count)[:, None] * share)
        for u, v in facts:
            table[u, v] = 1
        p[q][np.ix_(own, own)] = table[np.ix_(to, to)]
    return p


def answer_sets(shape, slots, triples, domain, number):
    """The answers by Python sets."""
    if shape.operator == "anchor":
        return {slots[0]}
    parts = [
        answer_sets(branch, slots[own], triples, domain, number)
        for branch, own in zip(shape.branches, shape.branch_slots, strict=True)
    ]
    if shape.operator == "via":
        inverse, relation = divmod(slots[-1], number)
        pairs = [(t, h) if inverse else (h, t) for h, r, t in triples if r == relation]
        return {v for u, v in pairs if u in parts[0]}
    if shape.operator == "not":
        return domain - parts[0]
    return set.intersection(*parts) if shape.operator == "and" else set.union(*parts)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_ranks_and_figures_are_those_of_brute_force(data, split, tmp_path):
    links, one = links_of(data, split), EntitySettings(proximity=0.7, iterations=2)
    table, scorer = table_of_links(links, data, split, one), links.scorer(one)
    observed, full = data.observed(split).tolist(), data.full(split).tolist()
    domain, number = set(data.candidates(split).tolist()), len(data.relations)
    assert len(domain) <= one.beam
    spread = []
    for kind in (*TYPES, *NEGATION):
        shape, counts, hits, reciprocal = structure(kind), [], [], []
        ranking = rank_in_parts(links.task, scorer, kind, 5, tmp_path)
        batch = links.task.queries(kind, 5)[0]
        better, ties = ranking.counts.better.tolist(), ranking.counts.ties.tolist()
        for slots in batch.slots.tolist():
            easy = answer_sets(shape, slots, observed, domain, number)
            hard = answer_sets(shape, slots, full, domain, number) - easy
            with np.errstate(divide="ignore"):
                score = np.log(walk_truth(shape, slots, np.nan_to_num(table)))
            rest = np.array(sorted(domain - easy - hard))
            own_hits, own_reciprocal = [], []
            for answer in sorted(hard):
                place = len(counts)
                low = int((score[rest] > score[answer] + 1e-3).sum())
                high = int((score[rest] >= score[answer] - 1e-3).sum())
                assert low <= better[place] <= better[place] + ties[place] <= high
                assert ranking.counts.candidates[place] == len(rest)
                rank = 1 + better[place] + ties[place] / 2
                own_hits.append(rank <= 10)
                own_reciprocal.append(1 / rank)
                counts.append(high - low)
            hits, reciprocal = [*hits, own_hits], [*reciprocal, own_reciprocal]
        assert len(counts) == len(better)
        spread += counts
        if not counts:
            assert list(figures(ranking)) == []
            continue
        macro, micro = figures(ranking)
        for found, values, name in ((macro, hits, "hits@10"), (macro, reciprocal, "mrr")):
            assert found[name] == pytest.approx(
                np.mean([np.mean(v) for v in values if v]), abs=1e-6
            )
        for values, name in ((hits, "hits@10"), (reciprocal, "mrr")):
            assert micro[name] == pytest.approx(np.mean(np.concatenate(values)), abs=1e-6)
    # Few scores are too near for single precision to tell them apart.
    assert np.mean(spread) < 1


@pytest.mark.parametrize("method", ["entities", "energy"])
def test_a_cell_that_was_interrupted_has_the_records_of_one_that_was_not(
    data, tmp_path, monkeypatch, method
):
    monkeypatch.setattr(entity_cell, "_PART", 2)
    monkeypatch.setattr(entity_cell, "ITERATIONS", (1, 2))
    monkeypatch.setattr(entity_cell, "SELECTION", (3, 2))
    monkeypatch.setattr(entity_cell, "GRID", {"proximity": (0.4, 0.5), "temperature": (2.5, 3.5)})
    monkeypatch.setattr(entity_cell, "read_queries", lambda *_: data)
    monkeypatch.setattr(TrainedCell, "_model", lambda cell: (built(cell.valid), 1.5))
    config = query_config("best", "550", "rotate")
    config = replace(config, propagation=SETTINGS, inverse_relations=False)
    asked, rank = [], QueryTask.rank

    def run(name, most):
        """Ends after so many calls of rank()."""
        left = iter(range(most))

        def count(task, scorer, kind, *arguments, **more):
            if next(left, None) is None:
                raise KeyboardInterrupt
            asked.append((name, task.split, kind))
            return rank(task, scorer, kind, *arguments, **more)

        monkeypatch.setattr(QueryTask, "rank", count)
        place = {"models": tmp_path / name / "models", "folder": tmp_path / name / "cell"}
        found = run_entities(Path(), "550", config, 0, method, 3, 3, **place)
        return [{k: v for k, v in record.items() if k != "seconds"} for record in found]

    whole = run("whole", 999)
    for most in (1, 9, 20):
        with pytest.raises(KeyboardInterrupt):
            run("parts", most)
    assert run("parts", 999) == whole
    kinds = TYPES if method == "energy" else (*TYPES, *NEGATION)
    assert [r["type"] for r in whole if r["averaging"] == "macro"] == list(kinds)
    # What was ranked is not ranked again.
    ranked = [
        [kind for name, split, kind in asked if (name, split) == (one, "test")]
        for one in ("whole", "parts")
    ]
    assert ranked[0] == ranked[1]


def test_standard_errors_are_over_queries():
    better = torch.tensor([0, 50, 0, 0])
    counts = RankCounts(better, torch.zeros_like(better), torch.full_like(better, 99))
    ranking = QueryRanking(counts, torch.tensor([0, 0, 1, 2]), 3, 100)
    # Hits of the queries are 1/2, 1, 1.
    expected = (((0.5 - 5 / 6) ** 2 + 2 * (1 - 5 / 6) ** 2) / 3) ** 0.5 / 3**0.5
    assert standard_error(ranking) == pytest.approx(expected)


def test_the_table_has_means_over_types_without_and_with_negation():
    base = {"ratio": "550", "model": "rotate", "preset": "best", "seed": 0, "limit": 100}
    records = [
        base
        | {"method": "entities", "type": kind, "averaging": "macro", "mrr": 0.25}
        | {"hits@10": 0.5 if kind in TYPES else 0.25, "standard_error": 0.03}
        for kind in (*TYPES, *NEGATION)
    ]
    text = entity_table(records)
    assert "| 50.0 ± 1.0 / 0.250 | 25.0 ± 1.3 / 0.250 |" in text
    assert "at most 100" in text


def test_the_summary_has_means_over_ratios_and_published_ones():
    base = {"model": "rotate", "preset": "best", "seed": 0, "method": "entities", "limit": None}
    records = [
        base
        | {"ratio": ratio, "type": kind, "averaging": averaging, "mrr": mrr}
        | {"hits@10": hits if averaging == "macro" else 0.99}
        for ratio, hits, mrr in (("106", 0.5, 0.25), ("550", 0.4, 0.5))
        for kind in (*TYPES, *NEGATION)
        for averaging in ("macro", "micro")
    ]
    one, two, three = entity_summary(records).split("\n\n")
    assert one.splitlines()[0].startswith("| 9 types without negation | 106 | 550 | mean of 2 |")
    own = "| RotatE, best: entities | 50.0 / 0.250 | 40.0 / 0.500 | 45.0 / 0.375 |"
    assert all(own in table for table in (one, two, three))
    assert "zero-shot (published, read; macro, ordinal ties, 9 ratios) |" in one
    assert "| 47.9 / 0.321 |" in one
    assert "| 29.1 / 0.156 |" in two
    gnn = "NodePiece-QE w/ GNN (published, paper; macro, ties by an unstable sort)"
    assert f"{gnn} | 33.7 | 11.9 | 22.8 |" in three
    assert "NodePiece" not in one + two
    # A row has all ratios, whatever number of queries was ranked.
    for limits, text in (
        ((None, 2000), "2,000 queries per type or all"),
        ((500, 500), "500 queries per type"),
        ((1000, 500), "500 to 1,000 queries per type"),
    ):
        other = [r | {"limit": limits[r["ratio"] == "550"]} for r in records]
        assert f"| RotatE, best: entities ({text}) | 50.0 / 0.250 | 40.0" in entity_summary(other)
    # A mean over ratios needs all of them.
    some = [r for r in records if (r["ratio"], r["type"]) != ("550", "2in")]
    assert "40.0 / 0.500 | 45.0" in entity_summary(some)
    assert f"| 50.0 / 0.250 | {NOTHING} | {NOTHING} |" in entity_summary(some)
