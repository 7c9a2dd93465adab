import numpy as np
from benchmarks import own_splits
from benchmarks.own_splits import load_split, run_split, split_table

from tests.benchmarks.test_episode_cell import episodes_config
from tests.toy import ring


def rings(monkeypatch):
    rows = [t for name in "abcd" for t in ring(name, 30)]
    parts = [np.array(rows[i::3], dtype=object) for i in range(3)]
    monkeypatch.setattr(own_splits, "read_parts", lambda name: parts)
    monkeypatch.setitem(own_splits.DATASETS, "toy", None)


def test_the_split_shares_no_entity(monkeypatch):
    rings(monkeypatch)
    data = load_split("toy", 0)
    assert not set(data.train.entities.labels) & set(data.inference.entities.labels)
    assert len(data.test)


def test_every_method_has_a_row(monkeypatch, tmp_path):
    rings(monkeypatch)
    records = run_split("toy", 0, episodes_config(), folder=tmp_path / "cell")
    found = [r["model"] for r in records if r["protocol"] == "full"]
    assert found == [
        "rotate + episodes + proximity",
        "rotate + episodes + proximity + peers",
        "rotate + episodes",
        "rotate + proximity",
        "rotate",
        "proximity alone",
        "proximity after the edge-type filter",
        "proximity and peers alone",
        "edge-type heuristic",
    ]
    key = {"dataset": "toy", "seed": 0}
    table = split_table([key | r for r in records]).splitlines()
    assert len(table) == 2 + len(found)
    assert "toy, split 0" in table[0]
