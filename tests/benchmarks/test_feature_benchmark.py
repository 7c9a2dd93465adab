import numpy as np
import pytest
import torch
from benchmarks import feature_benchmark
from benchmarks.feature_benchmark import NewEntities, draw_features, feature_table, run_cell

from sheafprop.data import FeatureTable, KnowledgeGraph
from sheafprop.data.features import Column
from tests.toy import ring

CONFIG = {
    "model": {"kge": "rotate", "hidden_channels": 8, "lr": 0.1},
    "data": {"batch_size": 64},
    "trainer": {"max_epochs": 3},
}


@pytest.fixture
def _rings(monkeypatch):
    rows = ring("a", 60)
    labels = tuple(f"a{i}" for i in range(55))
    places = np.array([np.sin(i / 10) for i in range(55)])
    table = FeatureTable(labels, (Column("place", "number", places),))
    parts = [np.array(rows[i::3], dtype=object) for i in range(3)]
    monkeypatch.setattr(feature_benchmark, "read_parts", lambda name: parts)
    monkeypatch.setattr(feature_benchmark, "load_features", lambda name: table)


def test_new_entities_are_in_no_training_triple_and_facts_grow_with_the_level():
    parts = NewEntities(KnowledgeGraph.from_labels(ring("a", 60)), 0)
    assert int(parts.train[:, [0, 2]].max()) < parts.num_old
    assert len(parts.entities) - parts.num_old >= 6
    assert len(parts.train) + len(parts.observed) + len(parts.test) == len(parts.known)
    before = torch.zeros(0, 3, dtype=torch.long)
    for most in (0, 1, 2, 4, None):
        facts = parts.facts(most)
        new = facts[:, [0, 2]] >= parts.num_old
        assert bool(new.any(1).all())
        if most is not None:
            assert bool((new.sum(1) == 1).all())
            number = torch.bincount(facts[:, [0, 2]][new], minlength=len(parts.entities))
            assert int(number.max()) <= most
        kept = {tuple(fact) for fact in facts.tolist()}
        assert {tuple(fact) for fact in before.tolist()} <= kept
        before = facts
    assert not kept & {tuple(fact) for fact in parts.test.tolist()}


@pytest.mark.usefixtures("_rings")
@pytest.mark.parametrize("inner", [False, True])
def test_every_level_and_method_has_a_row(tmp_path, inner):
    records = run_cell("toy", "rotate", 0, inner, CONFIG, folder=tmp_path / "cell")
    found = [(r["method"], r["facts"]) for r in records]
    ours = [(m, n) for n in (0, 1, 2, 4, -1) for m in ("with features", "without features")]
    assert sorted(found) == sorted([*ours, ("training mean", 0), ("nearest by features", 0)])
    assert all(0 <= r["hits@10"] <= 1 for r in records)
    records = [r | {"dataset": "toy", "seed": seed} for r in records for seed in (0, 1)]
    table = feature_table(records).splitlines()
    assert len(table) == 6
    assert table[2].startswith("| toy, 2 seeds | with features |")
    assert "all facts" in table[0]
    draw_features(records, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
