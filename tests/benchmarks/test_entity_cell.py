"""Queries over entities in the benchmark: what links may know, what is chosen, what is kept."""

from dataclasses import replace

import pytest
import torch
from benchmarks import entity_cell
from benchmarks.entity_cell import (
    EntitySettings,
    KeptResults,
    ObservedLinks,
    choose,
    standard_error,
)
from benchmarks.query_cell import TYPES
from benchmarks.query_sampling import sample_queries
from benchmarks.query_split import inductive_query_split
from benchmarks.query_task import QueryTask
from benchmarks.tables.query_tables import NEGATION, entity_table

from sheafprop.query import QueryRanking
from sheafprop.ranking import RankCounts
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
    links = links_of(data, split).scorer(settings).links
    entities = data.candidates(split)[::3]
    return torch.stack([links.log_rows(entities, q) for q in range(2 * len(data.relations))])


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
    far = rows_of(data, "valid", EntitySettings(proximity=0.0))
    assert (whole == 0).any()
    assert not (bare == 0).any()
    assert (far == 0).sum() == (whole == 0).sum()
    assert not torch.allclose(far[far > -99], whole[far > -99])


def test_an_inverse_relation_of_its_own_is_its_own(data):
    plain = QueryTask(data, "valid", inverse_relations=False)
    own = QueryTask(data, "valid", inverse_relations=True)
    for task, expected in ((plain, "head"), (own, "tail")):
        links = ObservedLinks(task, built(task), SETTINGS)
        links.scorer(EntitySettings())
        asked = []
        score = links._scorer.scores
        links._scorer.scores = lambda x, r, side, s=score, a=asked: (
            a.append((r, side)) or s(x, r, side)
        )
        links.score_links(data.candidates("valid")[:2], 1, True)
        assert asked[0][1] == expected
        label = data.relations.labels[1]
        wanted = label if task is plain else data.inverse_label(label)
        assert task.completion.train.relations.labels[int(asked[0][0][0])] == wanted


def test_the_best_validation_figure_is_chosen(data, tmp_path, monkeypatch):
    grid = {"iterations": (1, 3), "temperature": (0.01, 3.0), "proximity": (0.0, 1.0)}
    monkeypatch.setattr(entity_cell, "GRID", grid)
    kept = KeptResults(tmp_path)
    links = links_of(data, "valid")
    best = choose(links, 1, 5, kept)
    assert len(kept.found) == 1 + 1 + 2 + 2 - (best.temperature in (2.5,))
    assert max(kept.found.values()) == kept.found[max(kept.found, key=kept.found.get)]
    assert f'"temperature": {best.temperature}' in max(kept.found, key=kept.found.get)
    # A second call asks nothing again.
    monkeypatch.setattr(QueryTask, "rank", None)
    assert choose(links, 1, 5, KeptResults(tmp_path)) == best


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
