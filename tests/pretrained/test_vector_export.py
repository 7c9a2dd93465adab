import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sheafprop.errors import DataError
from sheafprop.files import StorageError
from sheafprop.pretrained import vector_export
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.vector_export import export_vectors
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
