import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sheafprop.data import read_triples
from sheafprop.errors import DataError, FormatError
from sheafprop.files import StorageError, label_file
from sheafprop.pretrained import vector_export
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.vector_export import export_vectors, read_relation_file
from tests.pretrained.models import FACTS, sheaf_model

LABELS = ["plain", "New York, NY", "é"]


@pytest.fixture(params=[torch.float32, torch.complex64])
def vectors(request):
    g = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, 4, generator=g, dtype=request.param)


def flat(vectors):
    real = torch.view_as_real(vectors) if vectors.is_complex() else vectors
    return real.flatten(1).numpy()


def test_every_format_gives_the_numbers_back(tmp_path, vectors):
    files = export_vectors(tmp_path / "v.safetensors", LABELS, vectors)
    read = load_file(files[0])["vectors"]
    assert np.array_equal(read.flatten(1).numpy(), flat(vectors))
    assert read.shape[:3] == (3, 2, 4)
    assert json.loads(files[1].read_text()) == LABELS

    files = export_vectors(tmp_path / "v.npy", LABELS, vectors)
    assert np.array_equal(np.load(files[0], allow_pickle=False), flat(vectors))
    assert json.loads(files[1].read_text()) == LABELS

    (file,) = export_vectors(tmp_path / "v.tsv", LABELS, vectors)
    rows = [line.split("\t") for line in file.read_text().splitlines()]
    assert [row[0] for row in rows] == LABELS
    assert np.array_equal(np.array([row[1:] for row in rows], dtype=np.float32), flat(vectors))

    (file,) = export_vectors(tmp_path / "v.txt", LABELS, vectors)
    lines = file.read_text().splitlines()
    assert lines[0] == f"3 {flat(vectors).shape[1]}"
    rows = [line.split(" ") for line in lines[1:]]
    assert [row[0] for row in rows] == ["plain", "New_York,_NY", "é"]
    assert np.array_equal(np.array([row[1:] for row in rows], dtype=np.float32), flat(vectors))


def test_nodes_for_neo4j_keep_labels_exactly(tmp_path, vectors):
    labels = ['with "quotes", and\ttab', " padded ", "two\nlines"]
    (file,) = export_vectors(tmp_path / "v.csv", labels, vectors)
    with open(file, newline="", encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    assert header == ["label:ID", ":LABEL", "vector:float[]"]
    assert [row[0] for row in rows] == labels
    assert {row[1] for row in rows} == {"Entity"}
    values = np.array([row[2].split(";") for row in rows], dtype=np.float32)
    assert np.array_equal(values, flat(vectors))


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("v.bin", LABELS, "does not say a format"),
        ("v.tsv", ["a", "b\tc", "d"], "a tab or a line break"),
        ("v.txt", ["a b", "a_b", "c"], "are both 'a_b'"),
        ("v.txt", ["", "a", "b"], "are both ''"),
    ],
)
def test_labels_that_cannot_stand_there_are_named(tmp_path, name, labels, message):
    with pytest.raises(DataError, match=message):
        export_vectors(tmp_path / name, labels, torch.zeros(3, 1, 2))
    assert not list(tmp_path.iterdir())


def test_every_vector_needs_a_label(tmp_path):
    with pytest.raises(ValueError, match="a label for each vector"):
        export_vectors(tmp_path / "v.npy", LABELS[:2], torch.zeros(3, 1, 2))


@pytest.mark.parametrize("name", ["v.npy", "v.safetensors"])
def test_vectors_and_labels_are_both_written_or_neither(tmp_path, name):
    (tmp_path / f"{name}.labels.json").mkdir()
    with pytest.raises(StorageError, match=r"labels\.json' cannot be written: it is a folder"):
        export_vectors(tmp_path / name, LABELS, torch.zeros(3, 1, 2))
    assert not (tmp_path / name).exists()


def test_a_model_is_exported_part_by_part(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_export, "_STEP", 4)
    model = sheaf_model("rotate", dtype=torch.float32).extend(FACTS, propagation="selected")
    model = SheafModel.load(model.save(tmp_path / "m", layout="mapped")).remove(["a3"])
    for name in ("v.safetensors", "v.npy", "v.tsv", "v.txt"):
        want = export_vectors(tmp_path / f"whole_{name}", model.labels(), model.vectors())
        found = model.export(tmp_path / name)
        assert [path.read_bytes() for path in found] == [path.read_bytes() for path in want]


def test_no_vectors(tmp_path):
    files = export_vectors(tmp_path / "v.safetensors", [], torch.zeros(0, 2, 3))
    assert load_file(files[0])["vectors"].shape == (0, 2, 3)
    assert json.loads(files[1].read_text()) == []
    files = export_vectors(tmp_path / "v.npy", [], torch.zeros(0, 2, 3))
    assert np.load(files[0]).shape == (0, 6)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_relations_and_facts_are_written_beside_vectors(tmp_path):
    model = sheaf_model("transr", relation_channels=3, p=1.0, squared=True).extend(FACTS)
    places = [tmp_path / name for name in ("v.npy", "r.safetensors", "f.tsv")]
    written = model.export(places[0], relations=places[1], facts=places[2])
    assert sorted(p.name for p in written) == names(tmp_path)
    assert set(written) == {*places, label_file(places[0]), label_file(places[1])}
    found = read_relation_file(places[1])
    assert (found.model, found.p, found.squared) == ("transr", 1.0, True)
    state = model.kge.state_dict()
    assert found.parameters.keys() == state.keys() - {"node_emb.weight"}
    assert all(torch.equal(value, state[key]) for key, value in found.parameters.items())
    assert json.loads(label_file(places[1]).read_text()) == list(model.relations.labels)
    assert read_triples(places[2]).tolist() == model.facts().to_numpy().tolist()
    assert len(np.load(places[0])) == model.num_entities


def test_a_model_without_relation_parameters_has_an_empty_file(tmp_path):
    sheaf_model("um").export(tmp_path / "v.npy", relations=tmp_path / "r.safetensors")
    assert read_relation_file(tmp_path / "r.safetensors").parameters == {}
    assert load_file(tmp_path / "r.safetensors") == {}


@pytest.mark.parametrize("bad", ["v.npy", "v.npy.labels.json"])
def test_files_that_are_one_are_refused(tmp_path, bad):
    with pytest.raises(DataError, match="files of their own"):
        sheaf_model("transe").export(tmp_path / "v.npy", facts=tmp_path / bad)
    assert names(tmp_path) == []


def test_all_files_are_written_or_none(tmp_path):
    model = sheaf_model("transe")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for words in ({"relations": blocked}, {"facts": blocked}):
        with pytest.raises(StorageError):
            model.export(tmp_path / "v.npy", **({"facts": tmp_path / "f.tsv"} | words))
    with pytest.raises(DataError, match="a format"):
        model.export(tmp_path / "v.xyz", relations=tmp_path / "r", facts=tmp_path / "f")
    odd = sheaf_model("transe").extend([("a\tb", "next", "a1")])
    with pytest.raises(DataError, match="tab"):
        odd.export(tmp_path / "v.npy", relations=tmp_path / "r", facts=tmp_path / "f")
    assert names(tmp_path) == ["blocked"]


def test_a_file_of_another_origin_is_refused(tmp_path):
    place = tmp_path / "r.safetensors"
    save_file({"rel_emb.weight": torch.ones(2, 3)}, place)
    with pytest.raises(FormatError, match="--relation-vectors"):
        read_relation_file(place)
    save_file({}, place, metadata={"sheafprop": '{"model": "transe"}'})
    with pytest.raises(FormatError, match="does not hold relations"):
        read_relation_file(place)
    place.write_bytes(b"cut")
    with pytest.raises(FormatError, match="does not hold relations"):
        read_relation_file(place)
    with pytest.raises(StorageError):
        read_relation_file(tmp_path / "missing")


def test_relations_and_facts_need_files_of_their_own(tmp_path):
    model, relations = sheaf_model("transe"), tmp_path / "r.safetensors"
    for facts in (relations, label_file(relations)):
        with pytest.raises(DataError, match="need files of their own"):
            model.export(tmp_path / "v.npy", relations=relations, facts=facts)
    assert names(tmp_path) == []
