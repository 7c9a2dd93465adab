import errno
import json
import os
import pty
import stat
import subprocess
import sys

import pytest

from sheafprop import files as atomic
from sheafprop.errors import SheafpropError
from sheafprop.files import (
    StorageError,
    check_folder_target,
    new_folder,
    previous_folder,
    write_bytes,
    write_json,
    write_text,
    written_after,
)


def refuse(code):
    def raising(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return raising


def test_writes_what_it_is_given_into_a_new_folder(tmp_path):
    path = tmp_path / "a" / "b" / "file.bin"
    write_bytes(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    write_text(str(path), "zwei\nZeilen äöü")
    assert path.read_text(encoding="utf-8") == "zwei\nZeilen äöü"
    assert os.listdir(path.parent) == ["file.bin"]


def test_permissions_are_those_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_bytes(tmp_path / "atomic", b"")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_pipes_and_devices_are_written_into_and_stay_what_they_are(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, tmp_path / "link"):
            write_bytes(path, b"table")
            assert os.read(reader, 99) == b"table"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    # A terminal stands for all devices: replacing one of them would harm the machine.
    outer, inner = pty.openpty()
    try:
        write_bytes(os.ttyname(inner), b"table")
        assert os.read(outer, 99) == b"table"
        assert stat.S_ISCHR(os.stat(os.ttyname(inner)).st_mode)
    finally:
        os.close(outer)
        os.close(inner)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_standard_output_by_its_name_keeps_what_it_holds(tmp_path, mode):
    code = (
        "from sheafprop.files import write_text\nprint('before', flush=True)\n"
        "write_text('/dev/stdout', 'table\\n')\nprint('after')"
    )
    with open(tmp_path / "log", mode) as log:
        log.write("old\n")
        log.flush()
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    assert (tmp_path / "log").read_text() == "old\nbefore\ntable\nafter\n"
    piped = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert piped.stdout == b"before\ntable\nafter\n"


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "disk is full. Free some space"),
        (errno.EDQUOT, "quota is used up"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_a_refused_write_keeps_the_old_file_and_leaves_nothing(
    tmp_path, monkeypatch, step, code, advice
):
    path = tmp_path / "file"
    write_text(path, "old")
    if step == "open":
        monkeypatch.setattr(atomic, "open", refuse(code), raising=False)
    else:
        monkeypatch.setattr(atomic.os, step, refuse(code))
    with pytest.raises(StorageError, match=advice) as caught:
        write_text(path, "new")
    assert str(path) in str(caught.value)
    assert caught.value.errno == code
    assert isinstance(caught.value, SheafpropError)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == []


def test_parent_that_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        write_text(tmp_path / "file" / "below", "x")


def test_target_that_is_a_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder' cannot be written"):
        write_text(tmp_path / "folder", "x")
    assert os.listdir(tmp_path) == ["folder"]


def test_json_comes_back_as_it_was(tmp_path):
    value = {"a": [1, 2.5, None, True], "ключ": {"b": "line\nbreak \ud800 \u2028"}}
    write_json(tmp_path / "value.json", value)
    assert json.loads((tmp_path / "value.json").read_bytes()) == value


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [0, {"b": object()}]}, r"the value\['a'\]\[1\]\['b'\] must be a plain value"),
        ({1: "a"}, "the keys of the value must be strings"),
        (b"bytes", "got bytes"),
    ],
)
def test_json_refuses_what_it_cannot_give_back(tmp_path, value, where):
    with pytest.raises(ValueError, match=where):
        write_json(tmp_path / "value.json", value)
    assert os.listdir(tmp_path) == []


def test_every_rename_is_made_durable(tmp_path, monkeypatch):
    """Content before the rename, and the folder's own entry after it: a crash loses neither."""
    events, replace, fsync = [], os.replace, os.fsync

    def renamed(source, target):
        events.append(("rename", os.stat(os.path.dirname(target)).st_ino))
        replace(source, target)

    def synced(handle):
        status = os.fstat(handle)
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        events.append((kind, status.st_ino if kind == "folder" else status.st_size))
        fsync(handle)

    monkeypatch.setattr(atomic.os, "replace", renamed)
    monkeypatch.setattr(atomic.os, "fsync", synced)
    for content in (b"first", b"longer than the first"):
        write_bytes(tmp_path / "deep" / "file", content)
        inode = os.stat(tmp_path / "deep").st_ino
        assert events == [("file", len(content)), ("rename", inode), ("folder", inode)]
        events.clear()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch, is_there):
    target = tmp_path / "deep" / "folder"
    if is_there:
        target.mkdir(parents=True)
        (target / "old").write_text("old")

    def write(text):
        with new_folder(target, replace=True) as temporary:
            assert temporary.parent == target.parent
            (temporary / "new").write_text(text)

    with pytest.raises(TypeError):
        write(None)
    assert [p.name for p in tmp_path.rglob("*")] == ["deep", *(["folder", "old"] * is_there)]
    replace = os.replace

    def refuse_last(source, place):
        if os.path.basename(source).startswith(".sheafprop-"):
            raise OSError(errno.ENOSPC, "full")
        replace(source, place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse_last)
        with pytest.raises(OSError, match="full"):
            write("new")
    assert [p.name for p in tmp_path.rglob("*")] == ["deep", *(["folder", "old"] * is_there)]
    write("new")
    assert [p.name for p in tmp_path.rglob("*")] == ["deep", "folder", "new"]
    assert previous_folder(target) == tmp_path / "deep" / ".folder.previous"


def test_a_folder_that_another_process_made_meanwhile_stays(tmp_path):
    target = tmp_path / "folder"

    def write():
        with new_folder(target, replace=False) as temporary:
            (temporary / "new").write_text("")
            target.mkdir(exist_ok=True)
            (target / "theirs").write_text("theirs")

    with pytest.raises(OSError, match="not empty"):
        write()
    assert [p.name for p in tmp_path.rglob("*")] == ["folder", "theirs"]


def test_a_file_is_written_after_a_block_that_ends_well(tmp_path):
    path = tmp_path / "deep" / "file"
    write_text(path, "old")
    with pytest.raises(KeyError), written_after(path, b"new"):
        raise KeyError
    assert path.read_text() == "old"
    with written_after(path, b"new"):
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("place", ["folder", "file/below", "full"])
def test_what_cannot_be_written_is_refused_before_the_block(tmp_path, monkeypatch, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    if place == "full":
        monkeypatch.setattr(atomic.os, "fsync", refuse(errno.ENOSPC))
    begun = []
    with (
        pytest.raises(StorageError, match=f"{place}' cannot be written"),
        written_after(tmp_path / place, b"new"),
    ):
        begun.append(place)
    assert not begun
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_an_error_of_the_block_stays_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="theirs"), written_after(tmp_path / "own", b""):
        raise FileNotFoundError("theirs")


def test_only_an_own_folder_may_be_replaced(tmp_path):
    def check(overwrite=True):
        check_folder_target(
            tmp_path / "x", overwrite, names=("a",), record="record.json", what="a thing"
        )

    check(overwrite=False)
    with pytest.raises(StorageError, match="cannot be written: the name is too long"):
        check_folder_target("x" * 300, False, names=(), record="record.json", what="a thing")
    (tmp_path / "x").mkdir()
    check(overwrite=False)
    write_json(tmp_path / "x" / "record.json", {"library": "sheafprop 9"})
    (tmp_path / "x" / "a").write_text("")
    check()
    with pytest.raises(ValueError, match="exists: choose another folder"):
        check(overwrite=False)
    (tmp_path / "x" / "b").write_text("")
    with pytest.raises(ValueError, match="it holds 'b', which is not a file of a thing"):
        check()
    (tmp_path / "x" / "b").unlink()
    for content in ("", "[]", '{"library": "other 1"}'):
        (tmp_path / "x" / "record.json").write_text(content)
        with pytest.raises(ValueError, match="it is not a thing that sheafprop wrote"):
            check()
