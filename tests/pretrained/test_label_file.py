from pathlib import Path

import numpy as np
import pytest
import torch

from sheafprop.data.label_checks import fold
from sheafprop.errors import DataError, FormatError
from sheafprop.pretrained import label_file
from sheafprop.pretrained.label_file import MappedLabels, label_tensors
from sheafprop.pretrained.tensor_file import StoredFile, TensorFile, write_tensors

LABELS = ["plain", "", "日本語", "\ud800", "Plain", "PLAIN ", "with\nbreak", "7", "\u2028"]
ORIGINS = ["trained"] * 6 + ["extended", "unanchored", "extended"]


def mapped(path: Path, labels=LABELS, origins=ORIGINS, **changes):
    path.unlink(missing_ok=True)
    stored = StoredFile.of(path, *write_tensors(path, label_tensors(labels, origins) | changes))
    return MappedLabels(TensorFile(path), stored)


@pytest.fixture(params=["all hashes differ", "all hashes are equal"])
def labels(request, tmp_path, monkeypatch):
    if request.param == "all hashes are equal":
        monkeypatch.setattr(
            label_file, "label_keys", lambda given: np.full(len(given), 2**63 + 1, np.uint64)
        )
    return mapped(tmp_path / "x")


def test_labels_come_back(labels):
    assert len(labels) == len(LABELS)
    assert list(labels.labels(0, len(LABELS))) == LABELS
    assert [labels.labels(i, i + 1)[0] for i in range(len(LABELS))] == LABELS
    assert list(labels.labels(2, 5)) == LABELS[2:5]
    assert list(labels.origins(0, len(LABELS))) == ORIGINS
    labels.check()


def test_every_label_is_found_and_no_other(labels):
    asked = ["nobody", *LABELS, "plain ", "日本", "plain"]
    assert labels.lookup(asked).tolist() == [-1, *range(len(LABELS)), -1, -1, 0]
    assert labels.lookup([]).tolist() == []


def test_what_looks_alike_is_found_in_order(labels):
    wanted = {"plain", "日本語", "nobody"}
    expected = [(i, label) for i, label in enumerate(LABELS) if fold(label) in wanted]
    assert list(labels.find_folded(wanted)) == expected
    assert len(expected) == 4


def test_many_labels_over_several_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(label_file, "_STEP", 7)
    names = [f"E{i}" for i in range(100)]
    labels = mapped(tmp_path / "x", names, ["trained"] * 100)
    assert labels.lookup(names[::-1]).tolist() == list(range(99, -1, -1))
    assert [i for i, _ in labels.find_folded({"e3", "e55"})] == [3, 55]
    labels.check()


def test_no_labels(tmp_path):
    labels = mapped(tmp_path / "x", [], [])
    assert labels.lookup(["a"]).tolist() == [-1]
    assert list(labels.find_folded({"a"})) == []
    labels.check()


def test_a_label_that_occurs_twice_is_refused(labels):
    with pytest.raises(DataError, match=r"got '日本語' at 2 and at 9"):
        label_tensors([*LABELS, "日本語"], [*ORIGINS, "extended"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("offset", torch.zeros(4, dtype=torch.int32)),
        ("hash", torch.zeros(4, dtype=torch.int64)),
        ("id", torch.zeros(4, dtype=torch.int32)),
        ("fold_id", torch.zeros(3, dtype=torch.int32)),
        ("bytes", torch.zeros(4, dtype=torch.uint8)),
    ],
)
def test_tables_of_other_sizes_are_refused(tmp_path, name, value):
    with pytest.raises(FormatError, match=r"sizes of its tables do not fit"):
        mapped(tmp_path / "x", **{name: value})


def test_an_index_that_was_made_up_is_refused_where_it_is_used(tmp_path):
    ids = torch.full((len(LABELS),), 99, dtype=torch.int32)
    with pytest.raises(FormatError, match="a number in its index is out of range"):
        mapped(tmp_path / "x", id=ids).lookup(["plain"])
    with pytest.raises(FormatError, match="an origin is unknown"):
        mapped(tmp_path / "x", origin=torch.full((9,), 7, dtype=torch.uint8)).origins(0, 2)
    offset = label_tensors(LABELS, ORIGINS)["offset"]
    for place, value in ((3, -5), (3, 10**6)):
        wrong = offset.clone()
        wrong[place] = value
        with pytest.raises(FormatError, match="a label lies outside"):
            mapped(tmp_path / "x", offset=wrong).labels(2, 3)
    swapped = label_tensors(LABELS, ORIGINS)["id"].flip(0)
    labels = mapped(tmp_path / "x", id=swapped)
    # No label is taken for another, whatever the index says.
    assert set(labels.lookup(["plain"]).tolist()) <= {-1, 0}
    with pytest.raises(FormatError, match="'id' is not of its labels"):
        labels.check()


def test_bytes_that_are_no_text_are_refused(tmp_path):
    data = label_tensors(LABELS, ORIGINS)["bytes"].clone()
    data[0] = 255
    with pytest.raises(FormatError, match="a label is not text"):
        mapped(tmp_path / "x", bytes=data).labels(0, 1)
