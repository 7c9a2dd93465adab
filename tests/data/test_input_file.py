"""Files as streams."""

import gzip
import os
import threading

import pytest

from sheafprop.data import file_kinds
from sheafprop.data.input_file import InputFile
from sheafprop.errors import DataError
from sheafprop.files import StorageError

TEXT = "".join(f"line {i}\n" for i in range(5000))


def read(file):
    with file.open() as stream:
        return stream.read()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, file_kinds._zstd().compress])
def test_a_file_is_opened_again_and_again(tmp_path, pack):
    path = tmp_path / "f"
    path.write_bytes(pack(b"\xef\xbb\xbf" + TEXT.encode()))
    for file in (InputFile(path), InputFile("f", path.read_bytes())):
        assert read(file) == read(file) == TEXT.encode()
        assert TEXT.startswith(file.head())
        assert file.line(4321) == "line 4320"
        assert file.line(9999) == ""
        assert file.size == path.stat().st_size


def test_a_bar_counts_the_bytes_of_the_file(tmp_path, monkeypatch):
    counted = []

    class Bar:
        def update(self, count):
            counted.append(count)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    monkeypatch.setattr("sheafprop.data.input_file.progress_bar", lambda *a, **k: Bar())
    content = gzip.compress(TEXT.encode())
    with InputFile("f", content).open(progress=True) as stream:
        assert stream.read() == TEXT.encode()
    assert sum(counted) == len(content)


def test_a_pipe_is_read_once(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(b"a\tr\tb\n"))
    writer.start()
    file = InputFile(path)
    writer.join()
    assert file.head() == "a\tr\tb\n"
    assert read(file) == b"a\tr\tb\n"


def test_a_head_ends_with_a_whole_line_or_word():
    long = "é" * 200_000
    assert InputFile("f", ("x\n" + long).encode()).head() == "x\n"
    assert InputFile("f", ("x " + long).encode()).head() == "x "


def test_errors_name_the_file_and_those_of_others_pass(tmp_path):
    with pytest.raises(DataError, match="missing: cannot be read"):
        InputFile(tmp_path / "missing")
    file = InputFile("f", b"x")
    with pytest.raises(StorageError, match="other"), file.open():
        raise StorageError("other")
    with pytest.raises(DataError, match="f: cannot be read"), file.open():
        raise OSError(5, "Input/output error")
