import numpy as np
import pytest
from benchmarks.query_data import GRAPHS
from benchmarks.query_split import inductive_query_split

from sheafprop.errors import DataError


def triples(count=600, entities=80, relations=4, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers([0, 0, 0], [entities, relations, entities], size=(count, 3))
    return [(f"e{h}", f"r{r}", f"e{t}") for h, r, t in rows] + [("lonely", "r0", "e0")]


def as_labels(data, name):
    return {
        (data.entities.labels[h], data.relations.labels[r], data.entities.labels[t])
        for h, r, t in data.graphs[name].tolist()
    }


def test_parts_follow_the_rules():
    given = triples()
    data = inductive_query_split([*given, *given[:50]], train_fraction=0.5, seed=1)
    train, valid, _ = data.num_entities
    kinds = {name: set() for name in GRAPHS}
    for name, graph in data.graphs.items():
        assert len(graph.unique(dim=0)) == len(graph)
        assert as_labels(data, name) <= set(given)
        ends = graph[:, [0, 2]]
        kinds[name] = ((ends >= train).long() + (ends >= train + valid).long()).tolist()
    assert all(pair == [0, 0] for pair in kinds["train_graph"])
    for prefix, number in (("val", 1), ("test", 2)):
        for part in ("inference", "predict"):
            assert all(number in pair for pair in kinds[f"{prefix}_{part}"])
            assert all(3 - number not in pair for pair in kinds[f"{prefix}_{part}"])
        # What is to be predicted is about entities that are observed.
        observed = data.observed("valid" if prefix == "val" else "test")
        shown = set(observed[:, [0, 2]].flatten().tolist())
        assert set(data.graphs[f"{prefix}_predict"][:, [0, 2]].flatten().tolist()) <= shown
        inference, predict = (len(data.graphs[f"{prefix}_{p}"]) for p in ("inference", "predict"))
        assert inference / (inference + predict) == pytest.approx(0.85, abs=0.03)
    # Every entity and relation occurs, every relation in training; parts share no triple.
    whole = [row for name in GRAPHS for row in data.graphs[name].tolist()]
    assert len({tuple(row) for row in whole}) == len(whole)
    assert {i for h, _, t in whole for i in (h, t)} == set(range(len(data.entities)))
    assert len(data.graphs["train_graph"][:, 1].unique()) == len(data.relations)
    # Half of the 80 entities with two triples at least are new; all triples between old ones train.
    assert data.num_entities[1:] == (20, 20)
    assert "lonely" not in data.entities.labels[train:]
    # Ids follow the source within each group.
    first = {
        label: place
        for place, label in enumerate(dict.fromkeys(label for h, _, t in given for label in (h, t)))
    }
    for part in (slice(0, train), slice(train, train + valid), slice(train + valid, None)):
        places = [first[label] for label in data.entities.labels[part]]
        assert places == sorted(places)


def test_old_entities_and_relations_without_training_triples_are_dropped():
    rows = [(f"e{i}", "r", f"e{(i + j) % 20}") for i in range(20) for j in range(1, 8)]
    # Only ever beside other entities: whichever of its neighbours are new, "rare" has one relation.
    rows += [("x", "rare", "e0"), ("y", "rare", "e1")]
    for seed in range(6):
        data = inductive_query_split(rows, train_fraction=0.5, seed=seed)
        for name in GRAPHS:
            for h, r, t in data.graphs[name].tolist():
                assert r < len(data.relations)
                assert max(h, t) < len(data.entities)
        trained = {label for row in as_labels(data, "train_graph") for label in row[::2]}
        assert trained == set(data.entities.labels[: data.num_entities[0]])
        kept = {row for name in GRAPHS for row in as_labels(data, name)}
        used = {row[1] for row in as_labels(data, "train_graph")}
        assert {row[1] for row in kept} == used


def test_seeds():
    one, again, other = (
        inductive_query_split(triples(), train_fraction=0.3, seed=seed) for seed in (1, 1, 2)
    )
    assert one.entities == again.entities
    assert all(one.graphs[name].equal(again.graphs[name]) for name in GRAPHS)
    assert one.entities != other.entities


def test_what_cannot_be_split():
    with pytest.raises(DataError, match="no validation triple is left of 2"):
        inductive_query_split([("a", "r", "b"), ("b", "r", "c")], train_fraction=0.9, seed=0)
    with pytest.raises(ValueError, match=r"'train_fraction' must lie between 0 and 1"):
        inductive_query_split(triples(), train_fraction=1.0, seed=0)
