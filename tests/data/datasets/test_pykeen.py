import importlib.util
import sys

import pytest
import torch

from sheafprop.data import PykeenDataset, write_triples
from sheafprop.data.datasets import pykeen as module
from sheafprop.errors import DataError

installed = pytest.mark.skipif(
    importlib.util.find_spec("pykeen") is None, reason="PyKEEN is not installed"
)
COUNTS = {"umls": (135, 46, 6529), "kinships": (104, 25, 10686), "nations": (14, 55, 1992)}


@installed
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", COUNTS)
def test_split(name, seed):
    num_entities, num_relations, num_triples = COUNTS[name]
    data = PykeenDataset(name, seed=seed).load()
    report = data.report
    assert data.mode == "semi-inductive"
    assert data.inference.num_nodes == num_entities
    assert data.train.num_relations == num_relations
    assert report["free_entities"] == round(num_entities / 4)
    parts = [data.train.num_edges, len(data.train_valid), report["observed_triples"]]
    parts += [len(data.valid), len(data.test)]
    assert sum(parts) == num_triples
    touching = sum(parts[2:])
    assert abs(parts[3] - 0.1 * touching) <= 5
    assert abs(parts[4] - 0.1 * touching) <= 5
    assert parts[1] == round(0.1 * (parts[0] + parts[1]))
    assert report["overlaps"] == {}
    assert report["valid_without_free"] == report["test_without_free"] == 0
    assert report["isolated_free"] == 0
    free = (~data.boundary_mask).nonzero().flatten()
    assert torch.isin(free, data.inference.edge_index).all()
    assert len(data.train.edge_type.unique()) == num_relations


@installed
def test_seeds():
    first, again, other = (PykeenDataset("umls", seed=seed).load() for seed in (0, 0, 1))
    assert torch.equal(first.test, again.test)
    assert first.inference.entities == again.inference.entities
    assert set(first.train.entities) != set(other.train.entities)


@installed
def test_pykeen_is_not_imported(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pykeen"]:
        monkeypatch.delitem(sys.modules, name)
    PykeenDataset("nations").load()
    assert "pykeen" not in sys.modules


def fake_pykeen(monkeypatch, folder):
    class Spec:
        submodule_search_locations = (str(folder),)

    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: Spec)


def test_missing_package_or_files(monkeypatch, tmp_path):
    fake_pykeen(monkeypatch, tmp_path)
    with pytest.raises(DataError, match="holds no files of 'umls'"):
        PykeenDataset("umls").load()
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'not installed. .*pip install "sheafprop\[pykeen\]"'):
        PykeenDataset("umls").load()


def test_relations_without_training_triples_are_reported(monkeypatch, tmp_path):
    folder = tmp_path / "datasets" / "nations"
    folder.mkdir(parents=True)
    dense = [(f"e{i}", "r", f"e{j}") for i in range(8) for j in range(8)]
    rare = [(f"e{2 * i}", f"rare{i}", f"e{2 * i + 1}") for i in range(4)]
    write_triples(folder / "train.txt", dense)
    write_triples(folder / "valid.txt", rare[:2])
    write_triples(folder / "test.txt", rare[2:])
    fake_pykeen(monkeypatch, tmp_path)
    data = PykeenDataset("nations", new_fraction=0.75).load()
    (note,) = [note for note in data.report["notes"] if "dropped" in note]
    kept = set(data.train.relations)
    assert note.startswith(f"{5 - len(kept)} triples of {5 - len(kept)} relations")


def test_unknown_name():
    with pytest.raises(ValueError, match=r"umls, kinships, nations \(got 'UMLS'\)"):
        PykeenDataset("UMLS")
