import numpy as np
import pytest
import torch
from benchmarks.query_sampling import sample_queries
from benchmarks.query_split import inductive_query_split

from sheafprop.query import STRUCTURES, GraphExecutor, QueryBatch
from tests.benchmarks.test_query_split import triples


@pytest.fixture(scope="module")
def data():
    graph = inductive_query_split(triples(900, 90), train_fraction=0.5, seed=0)
    wanted = {name: 40 for name in STRUCTURES}
    with pytest.warns(UserWarning, match="queries of type 3in were found, 40 were wanted"):
        return sample_queries(graph, {"train": wanted, "valid": wanted, "test": wanted}, seed=3)


def branches(shape, row):
    """Every node with the positive branches it joins, as (structure, ids)."""
    for node_branch, slots in zip(shape.branches, shape.branch_slots, strict=True):
        yield from branches(node_branch, row[slots])
    if shape.operator in ("and", "or"):
        yield [
            (repr(b.branches[0] if b.operator == "not" else b), tuple(row[slots]))
            for b, slots in zip(shape.branches, shape.branch_slots, strict=True)
        ]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_queries_follow_the_rules(data, split):
    if split == "train":
        observed = full = data.graphs["train_graph"]
        domain = torch.arange(data.num_entities[0])
    else:
        observed, full, domain = data.observed(split), data.full(split), data.candidates(split)
    graphs = [
        GraphExecutor(part, len(data.entities), len(data.relations), domain)
        for part in (observed, full)
    ]
    assert set(data.queries[split]) == set(STRUCTURES)
    for name, rows in data.queries[split].items():
        easy, hard = data.answers[split][name]
        # So small a graph has few queries of type 3in with a hard answer.
        assert len(rows) == 40 or (name == "3in" and 0 < len(rows) < 40) or name == "1p"
        assert list(map(tuple, rows.tolist())) == sorted(set(map(tuple, rows.tolist())))
        seen, every = (g.answers(QueryBatch.of(name, torch.from_numpy(rows))) for g in graphs)
        for i, row in enumerate(rows.tolist()):
            own_easy, own_hard = set(easy[i].tolist()), set(hard[i].tolist())
            if split == "train":
                assert own_easy == set()
                assert own_hard == set(every[i].tolist())
            else:
                assert own_easy == set(seen[i].tolist())
                assert own_hard == set(every[i].tolist()) - own_easy
                if STRUCTURES[name].has("not"):
                    assert own_easy - set(every[i].tolist())
            assert own_hard
            for joined in branches(STRUCTURES[name], row):
                assert len(set(joined)) == len(joined)


def test_1p_asks_for_every_triple_to_predict_in_both_directions(data):
    graph = inductive_query_split(triples(900, 90), train_fraction=0.5, seed=0)
    asked = sample_queries(graph, {"test": {"1p": 10**6}}, seed=0)
    predict = graph.graphs["test_predict"].tolist()
    half = len(graph.relations)
    want = {(h, r) for h, r, _ in predict} | {(t, r + half) for _, r, t in predict}
    assert set(map(tuple, asked.queries["test"]["1p"].tolist())) == want
    _, hard = asked.answers["test"]["1p"]
    assert hard.values.size == 2 * len(predict)


def test_consecutive_relations_avoid_the_pairs_of_betae(data):
    rows = data.queries["train"]["3p"]
    pairs = np.concatenate([rows[:, 1:3], rows[:, 2:4]])
    adjacent = (pairs[:, 0] // 2 == pairs[:, 1] // 2) & (pairs[:, 0] != pairs[:, 1])
    assert not adjacent.any()


def test_seeds(data):
    graph = inductive_query_split(triples(900, 90), train_fraction=0.5, seed=0)
    again = sample_queries(graph, {"test": {"pi": 40}}, seed=3)
    other = sample_queries(graph, {"test": {"pi": 40}}, seed=4)
    third = sample_queries(graph, {"test": {"pi": 40}}, seed=3)
    assert np.array_equal(again.queries["test"]["pi"], third.queries["test"]["pi"])
    assert not np.array_equal(again.queries["test"]["pi"], other.queries["test"]["pi"])


def test_a_small_graph_has_few_queries():
    graph = inductive_query_split(triples(150, 30, 2), train_fraction=0.6, seed=0)
    with pytest.warns(UserWarning, match=r"\d+ test queries of type 2p were found, 100000 were"):
        found = sample_queries(graph, {"test": {"2p": 100_000}}, seed=0)
    assert 0 < len(found.queries["test"]["2p"]) < 2000
