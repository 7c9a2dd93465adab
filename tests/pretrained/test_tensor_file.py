import errno
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from sheafprop import files
from sheafprop.errors import FormatError
from sheafprop.files import StorageError
from sheafprop.pretrained.tensor_file import (
    Pieces,
    StoredFile,
    TensorFile,
    smallest_integers,
    write_tensors,
)

TENSORS = {
    "bytes": torch.arange(5, dtype=torch.uint8),
    "rows": torch.randn(7, 3, generator=torch.Generator().manual_seed(0)),
    "half": torch.arange(3).to(torch.bfloat16),
    "ids": torch.tensor([2**40, -1]),
    "none": torch.zeros(0, 4, dtype=torch.int32),
}


def test_other_programs_read_what_was_written(tmp_path):
    size, digest = write_tensors(tmp_path / "x.safetensors", TENSORS, {"a": "b"})
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    assert (tmp_path / "x.safetensors").stat().st_size == size
    assert len(digest) == 64


def test_what_other_programs_wrote_is_mapped(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"k": "v"})
    file = TensorFile(tmp_path / "x.safetensors")
    assert file.metadata == {"k": "v"}
    assert torch.equal(file.take("rows", dim=2, dtypes=(torch.float32,)), TENSORS["rows"])
    before = (tmp_path / "x.safetensors").read_bytes()
    file.tensors["rows"].zero_()
    assert (tmp_path / "x.safetensors").read_bytes() == before


def test_pieces_are_put_together(tmp_path):
    x = TENSORS["rows"]
    parts = Pieces(torch.float32, (7, 3), iter(x.split(2)))
    write_tensors(tmp_path / "x", {"x": parts})
    assert torch.equal(TensorFile(tmp_path / "x").tensors["x"], x)
    with pytest.raises(ValueError, match="do not add up"):
        write_tensors(tmp_path / "y", {"x": Pieces(torch.float32, (8, 3), iter(x.split(2)))})


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_part_of_a_file_is_refused(tmp_path, keep):
    write_tensors(tmp_path / "x", TENSORS)
    data = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(data[:keep])
    with pytest.raises(FormatError, match=r"x' is refused: it holds no tensors"):
        TensorFile(tmp_path / "x")


def test_tensors_of_another_kind_are_refused(tmp_path):
    write_tensors(tmp_path / "x", TENSORS)
    file = TensorFile(tmp_path / "x")
    for name, dim, dtype in (
        ("rows", 1, torch.float32),
        ("rows", 2, torch.int64),
        ("no", 1, torch.uint8),
    ):
        with pytest.raises(FormatError, match=rf"'{name}' must be"):
            file.take(name, dim=dim, dtypes=(dtype,))


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(StorageError, match="the disk is full"):
        write_tensors(tmp_path / "x", TENSORS)


def test_only_the_file_that_was_opened_is_linked(tmp_path):
    path = tmp_path / "x"
    file = StoredFile.of(path, *write_tensors(path, TENSORS))
    assert file.link(tmp_path / "again")
    assert os.path.samefile(path, tmp_path / "again")
    assert not file.link(tmp_path / "again")
    os.replace(tmp_path / "again", tmp_path / "other")
    path.unlink()
    path.write_bytes(b"another")
    assert not file.link(tmp_path / "new")
    path.unlink()
    assert not file.link(tmp_path / "new")


def test_integers_are_as_small_as_they_can_be():
    assert smallest_integers(2**31 - 1) == torch.int32
    assert smallest_integers(2**31) == torch.int64
