import errno

import numpy as np
import pytest
import torch

from sheafprop.errors import FormatError
from sheafprop.files import StorageError
from sheafprop.pretrained.mapped import array_folder
from sheafprop.pretrained.mapped.array_folder import ArrayFolder, load_rows, save_rows
from tests.kernels.test_build_fact_csr import FREE, KNOWN, RELATIONS, build


def made(path):
    folder = ArrayFolder(path).clear()
    arrays = {"a": folder.make("a", 5, np.int32), "b.c": folder.make("b.c", 4, np.float64)}
    folder.make("left", 9, np.int16)
    arrays["a"][:] = range(5)
    arrays["b.c"][:] = 0.5
    arrays["empty"] = folder.make("empty", 0, np.uint8)
    return folder, arrays


def test_arrays_come_back_cut_to_what_was_kept(tmp_path):
    folder, arrays = made(tmp_path / "x")
    assert folder.facts() is None
    folder.finish({**arrays, "a": arrays["a"][:3], "none": None}, counts={"n": 2})
    del arrays
    again = ArrayFolder(tmp_path / "x")
    assert again.facts()["counts"] == {"n": 2}
    found = again.open()
    assert {name: array.tolist() for name, array in found.items()} == {
        "a": [0, 1, 2],
        "b.c": [0.5] * 4,
        "empty": [],
    }
    assert not (tmp_path / "x" / "left.bin").exists()
    found["a"][0] = 7
    assert again.open()["a"][0] == 0


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_file_of_another_size_is_refused(tmp_path, size):
    folder, arrays = made(tmp_path / "x")
    folder.finish({"a": arrays["a"][:3]})
    (tmp_path / "x" / "a.bin").write_bytes(b"\0" * size)
    with pytest.raises(FormatError, match=rf"should have 12 bytes \(got {size}\)"):
        folder.open()
    assert folder.facts() is None
    assert folder.open() == {}


def test_a_file_that_is_missing_is_refused(tmp_path):
    folder, arrays = made(tmp_path / "x")
    folder.finish(arrays)
    (tmp_path / "x" / "a.bin").unlink()
    with pytest.raises(FormatError, match="is missing"):
        folder.open()


def test_a_full_disk_is_told_before_memory_is_written(tmp_path, monkeypatch):
    def refuse(handle, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(array_folder.os, "posix_fallocate", refuse, raising=False)
    with pytest.raises(StorageError, match="the disk is full"):
        ArrayFolder(tmp_path).make("a", 10, np.int32)


@pytest.mark.parametrize("missing", [True, False])
def test_space_is_taken_where_the_system_has_no_call_for_it(tmp_path, monkeypatch, missing):
    def refuse(handle, offset, length):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(array_folder, "_PIECE", 16)
    if missing:
        monkeypatch.delattr(array_folder.os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(array_folder.os, "posix_fallocate", refuse, raising=False)
    array = ArrayFolder(tmp_path).make("a", 10, np.int32)
    assert array.tolist() == [0] * 10
    assert (tmp_path / "a.bin").stat().st_size == 40


TRIPLES = [(0, 0, 1), (1, 2, 0), (1, 2, 0), (2, 1, 7), (8, 0, 2), (3, 1, 3), (4, 2, 4)]


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_come_back_as_they_are_in_memory(tmp_path, merge, ends, weighted):
    weight = [0.5 + i for i in range(len(TRIPLES))] if weighted else None
    options = dict(merge=merge, ends=ends, distinct=True)
    folder = ArrayFolder(tmp_path / "rows").clear()
    save_rows(folder, build(TRIPLES, weight, allocate=folder.make, **options))
    found, expected = load_rows(folder, FREE, KNOWN, RELATIONS), build(TRIPLES, weight, **options)
    assert torch.equal(found.total, expected.total)
    assert (found.ends is None) == (not ends)
    for part in ("free", "known", "loops", *(["ends"] if ends else [])):
        for column in ("start", "src", "label", "weight"):
            ours, theirs = (getattr(getattr(of, part), column) for of in (found, expected))
            assert (ours is None) == (theirs is None), (part, column)
            assert ours is None or (torch.equal(ours, theirs) and ours.dtype == theirs.dtype)
