import json

import numpy as np
import pytest
import torch
from benchmarks import default_benchmark
from benchmarks.default_benchmark import KEYS, cells, run_cell, split_disjoint, split_semi

from sheafprop.data import build_dataset
from tests.toy import parts, ring


@pytest.fixture
def toy(monkeypatch):
    files = {key: np.array(rows, dtype=object) for key, rows in parts("fully-inductive").items()}
    monkeypatch.setattr(default_benchmark, "read_files", lambda *_: files)
    small = ["--model.hidden_channels=4", "--trainer.max_steps=3", "--trainer.max_epochs=-1"]
    small += ["--model.propagation.iterations=[1,3]", "--model.propagation.settings.num_random=1"]
    command = default_benchmark.sheafprop
    monkeypatch.setattr(
        default_benchmark,
        "sheafprop",
        lambda words: command(words + small if words[0] == "fit" else words),
    )
    return files


def test_each_setting_gives_a_record(tmp_path, toy):
    found = {}
    for cell in cells(["fb237_v4"], list(default_benchmark.SETTINGS), [3]):
        folder = tmp_path / str(len(found))
        (found[cell.key["settings"]],) = run_cell(*cell.arguments, folder=folder)
        assert set(cell.key) == set(KEYS)
    json.dumps(found)
    assert {name: row["selected_on"] for name, row in found.items()} == {
        "default": "validation",
        "default without validation": "training graph",
        "preset": "validation",
    }
    for row in found.values():
        assert 0 <= row["mrr"] <= row["hits@10"] <= 1
        assert row["seconds_fit"] > 0
    assert found["default"]["validation_triples"] == len(toy["valid"])
    assert found["default without validation"]["validation_triples"] == len(toy["train_valid"])
    rows = [
        {"dataset": "fb237_v4", "settings": name, "seed": 3, **row} for name, row in found.items()
    ]
    text = default_benchmark.summarize(rows)
    assert "+0.0 points at 1.00" not in text.splitlines()[-1]
    assert "points at" in text


@pytest.mark.parametrize(
    ("split", "mode"), [(split_semi, "semi-inductive"), (split_disjoint, "fully-inductive")]
)
def test_splits_are_folders_of_their_mode(tmp_path, monkeypatch, split, mode):
    monkeypatch.setattr(default_benchmark, "_CUT", 290)
    triples = np.array(ring("a", 100), dtype=object)
    files = split(triples)
    default_benchmark.write_folder(tmp_path / "ring", files)
    data = build_dataset("folder", root=str(tmp_path / "ring"), mode=mode).load()
    everything = np.concatenate(list(files.values()))
    assert len({tuple(row) for row in everything}) == len(everything) <= len(triples)
    if mode == "semi-inductive":
        assert int((~data.boundary_mask).sum()) == 10
        ends = data.valid[:, [0, 2]]
        assert (~data.boundary_mask)[ends].any(dim=1).all()
    else:
        assert len(everything) <= 290
        inside = set(files["train"][:, [0, 2]].ravel())
        assert not inside & set(files["observed"][:, [0, 2]].ravel())
    assert data.report["overlaps"] == {}
    assert torch.is_tensor(data.test)
