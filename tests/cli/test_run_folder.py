"""Folders of runs: made beside those there are, locked, and removed where nothing was trained."""

import pickle

import pytest

from sheafprop.cli.run_folder import RunFolder
from sheafprop.errors import DataError
from sheafprop.files import StorageError


def test_a_new_folder_stands_beside_the_ones_there_are(tmp_path):
    places = [RunFolder(tmp_path / "group" / "run", new=True) for _ in range(3)]
    for place in places:
        place.make()
    assert [place.path.name for place in places] == ["run", "run-2", "run-3"]


def test_what_was_made_is_removed_unless_there_is_a_checkpoint(tmp_path):
    place = RunFolder(tmp_path / "group" / "inner" / "run", new=True)
    place.make()
    (place.path / "checkpoints").mkdir()
    place.discard()
    assert list(tmp_path.iterdir()) == []
    place.make()
    (place.path / "checkpoints").mkdir()
    (place.path / "checkpoints" / "last.ckpt").touch()
    place.discard()
    assert place.path.is_dir()
    there = RunFolder(tmp_path)
    there.discard()
    assert tmp_path.is_dir()


def test_a_folder_is_locked_once(tmp_path):
    pytest.importorskip("fcntl")
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    first.lock()
    with pytest.raises(StorageError, match="another process is at work"):
        second.lock()
    pickle.loads(pickle.dumps(first)).release()  # in a spawned process
    with pytest.raises(StorageError, match="another process is at work"):
        second.lock()
    first.release()
    second.lock()
    second.release()


def test_further_processes_take_the_folder_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("SHEAFPROP_RUN_FOLDER", raising=False)
    with pytest.raises(DataError, match="starts its further processes itself"):
        RunFolder(tmp_path / "run", new=True).make()
    monkeypatch.setenv("SHEAFPROP_RUN_FOLDER", str(tmp_path / "run-2"))
    place = RunFolder(tmp_path / "run", new=True)
    place.make()
    assert place.path == tmp_path / "run-2"
    assert not place.path.exists()
