"""A file of a user as a stream of bytes: decompressed while it is read, and opened again."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sheafprop.data.file_kinds import expand_stream, read_file, refuse_archives
from sheafprop.data.text_rows import BOM, decode
from sheafprop.errors import DataError, SheafpropError
from sheafprop.progress import progress_bar

# What is looked at to tell a format.
_HEAD = 1 << 16


class InputFile:
    """A file that may be compressed.

    A pipe, which can be read once, is read into memory at once.

    Args:
        path: The file.
        content (bytes, optional): What it holds, where that is in memory already.

    Raises:
        DataError: If it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], content: bytes | None = None):
        self.source = os.fspath(path)
        self._path = Path(path).expanduser()
        if content is None and not self._path.is_file():
            content = read_file(path)
        self._content = content

    @property
    def size(self) -> int:
        """The bytes of the file as it is."""
        return self._path.stat().st_size if self._content is None else len(self._content)

    @contextmanager
    def open(self, progress: bool = False) -> Iterator[BinaryIO]:
        """A stream of what the file holds, decompressed, without a byte order mark.

        Args:
            progress: Whether a bar shows how much of it was read.
        """
        with self._errors(), self._raw() as raw:
            mark = raw.read(16)
            raw.seek(0)
            with progress_bar(
                self.size, desc=f"reading {self.source}", shown=progress, unit="B"
            ) as bar:
                counted: Any = io.BufferedReader(_Counted(raw, bar)) if progress else raw
                stream = io.BufferedReader(expand_stream(counted, mark, self.size, self.source))
                refuse_archives(stream.peek(512)[:512], self.source)
                if stream.peek(3)[:3] == BOM:
                    stream.read(3)
                yield stream

    def head(self) -> str:
        """The first lines as text, the last of them perhaps cut."""
        with self.open() as stream:
            content = stream.read(_HEAD)
        whole = content[: content.rfind(b"\n") + 1] if len(content) == _HEAD else content
        return decode(whole or content[: content.rfind(b" ") + 1], self.source)

    def line(self, number: int) -> str:
        """A line, cut where it is long."""
        with self.open() as stream:
            lines = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline=None)
            for place, line in enumerate(lines, 1):
                if place == number:
                    return line.rstrip("\n")
        return ""

    def _raw(self) -> Any:
        return io.BytesIO(self._content) if self._content is not None else self._path.open("rb")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SheafpropError:
            raise
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{self.source}: cannot be read ({reason})") from error


class _Counted(io.RawIOBase):
    """A stream whose bytes a bar counts."""

    def __init__(self, stream: Any, bar: Any):
        super().__init__()
        self._stream, self._bar = stream, bar

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._stream.read(len(buffer))
        buffer[: len(part)] = part
        self._bar.update(len(part))
        return len(part)
