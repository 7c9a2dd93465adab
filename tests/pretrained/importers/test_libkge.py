"""Checkpoints of LibKGE, against its published formulas (it does not install here)."""

import sys
import types

import pytest
import torch

from sheafprop.cli.main import main
from sheafprop.errors import FormatError
from sheafprop.pretrained.importers import import_libkge
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.pretrained.importers.toy import (
    ENTITIES,
    FACTS,
    RELATIONS,
    TRIPLES,
    ends,
    rotate_distances,
    scores,
    tables,
)


class Config:
    """Stands for ``kge.config.Config``, whose class the importer must not need."""

    def __init__(self, options):
        self.options, self.folder = options, "/somewhere"


@pytest.fixture
def save(monkeypatch, tmp_path):
    """Saves a checkpoint with an object of a class that is gone when it is read."""

    def write(options, state, **more):
        with monkeypatch.context() as patch:
            module = types.ModuleType("kge.config")
            module.Config = Config
            patch.setitem(sys.modules, "kge", types.ModuleType("kge"))
            patch.setitem(sys.modules, "kge.config", module)
            patch.setattr(Config, "__module__", "kge.config")
            checkpoint = {"type": "train", "epoch": 3, "model": (state, {"meta": 1})}
            checkpoint |= {"config": Config(options), "valid_trace": [{"mrr": 0.5}]}
            torch.save(checkpoint | more, tmp_path / "best.pt")
        return tmp_path / "best.pt"

    return write


def write_data(folder):
    folder.mkdir(exist_ok=True)
    for name, labels in (("entity_ids", ENTITIES), ("relation_ids", RELATIONS)):
        lines = [f"{number}\t{label}\n" for number, label in enumerate(labels)]
        (folder / f"{name}.del").write_text("".join(lines))
    rows = ["\t".join(map(str, row)) + "\n" for row in TRIPLES.tolist()]
    (folder / "train.del").write_text("".join(rows))


def state_of(vectors, rows, prefix="", key="_embeddings"):
    return {
        f"{prefix}_entity_embedder.{key}.weight": vectors,
        f"{prefix}_relation_embedder.{key}.weight": rows,
    }


@pytest.mark.parametrize("key", ["_embeddings", "embeddings"])
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_rotate_has_its_published_scores(tmp_path, save, p, key):
    write_data(tmp_path)
    vectors, rows = tables(8, 4)
    options = {"model": "rotate", "rotate": {"l_norm": p, "normalize_phases": True}}
    stored = import_libkge(save(options, state_of(vectors, rows, key=key)))
    expected = -torch.norm(rotate_distances(vectors, rows), dim=1, p=p)
    torch.testing.assert_close(scores(stored), expected)
    assert SheafModel(stored).facts().to_numpy().tolist() == [list(fact) for fact in FACTS]
    assert "kge" not in sys.modules


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_transe_has_its_published_scores(tmp_path, save, p, reciprocal):
    write_data(tmp_path / "toy")
    vectors, rows = tables(4, 4, relations=4 if reciprocal else 2)
    options = {"model": "transe", "transe": {"l_norm": p}}
    if reciprocal:
        options["model"] = "reciprocal_relations_model"
        options["reciprocal_relations_model"] = {"base_model": {"type": "transe"}}
    state = state_of(vectors, rows, "_base_model." if reciprocal else "")
    stored = import_libkge(save(options, state), data=tmp_path / "toy")
    head, relation, tail = ends(vectors, rows)
    torch.testing.assert_close(scores(stored), -torch.norm(head + relation - tail, p, -1))
    notes = SheafModel(stored).stored().metrics["import"]["notes"]
    assert any("to rank heads" in note for note in notes) is reciprocal


def test_a_package_has_its_labels_in_itself(save, tmp_path, capsys):
    options = {"model": "transe", "transe": {"l_norm": 2.0}}
    dataset = {"num_entities": 5, "meta": {"entity_ids": ENTITIES, "relation_ids": RELATIONS}}
    path = save(options, state_of(*tables(4, 4)), type="package", dataset=dataset)
    assert main(["import", "libkge", str(path), "--out", str(tmp_path / "model")]) == 0
    assert SheafModel.load(tmp_path / "model").labels() == tuple(ENTITIES)
    assert "5 trained" in capsys.readouterr().err


def test_what_cannot_be_imported_is_named(tmp_path, save):
    write_data(tmp_path)
    state, transe = state_of(*tables(4, 4)), {"model": "transe", "transe": {"l_norm": 2.0}}
    with pytest.raises(FormatError, match="holds a complex: only transe and rotate of LibKGE"):
        import_libkge(save({"model": "complex"}, state))
    with pytest.raises(FormatError, match=r"no norm \('transe.l_norm'\)"):
        import_libkge(save({"model": "transe"}, state))
    more = {"_entity_embedder.projection.weight": torch.zeros(4, 4)}
    with pytest.raises(FormatError, match="must be a lookup_embedder"):
        import_libkge(save(transe, state | more))
    with pytest.raises(FormatError, match=r"vectors of the entities, \[5, any\]"):
        import_libkge(save(transe, state_of(torch.zeros(6, 4), tables(4, 4)[1])))
    (tmp_path / "train.del").write_text("0\t0\t9\n")
    with pytest.raises(FormatError, match="line 1: an id has no label"):
        import_libkge(save(transe, state))
    torch.save({"epoch": 1}, tmp_path / "best.pt")
    with pytest.raises(FormatError, match="is not a checkpoint of LibKGE"):
        import_libkge(tmp_path / "best.pt")
    with pytest.raises(FormatError, match="--data FOLDER"):
        import_libkge(save(transe, state), data=tmp_path / "none")
