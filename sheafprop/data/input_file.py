"""Input files as streams of bytes, decompressed while they are read."""

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

# Number of bytes used to infer the format.
_HEAD = 1 << 16


class InputFile:
    """A file, compressed or not, that can be opened several times.

    A pipe is read into memory, since it can be read only once.

    Args:
        path: The file.
        content (bytes, optional): Its content, if it is in memory already.

    Raises:
        DataError: If the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], content: bytes | None = None):
        self.source = os.fspath(path)
        self._path = Path(path).expanduser()
        if content is None and not self._path.is_file():
            content = read_file(path)
        self._content = content

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._path.stat().st_size if self._content is None else len(self._content)

    @contextmanager
    def open(self, progress: bool = False) -> Iterator[BinaryIO]:
        """Opens a stream of the decompressed content, without a byte order mark.

        Args:
            progress: Whether to show a progress bar.
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
        """Returns the first lines as text."""
        with self.open() as stream:
            content = stream.read(_HEAD)
        whole = content[: content.rfind(b"\n") + 1] if len(content) == _HEAD else content
        return decode(whole or content[: content.rfind(b" ") + 1], self.source)

    def line(self, number: int) -> str:
        """Returns a line by its number, counted from 1."""
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
    """A stream that updates a progress bar."""

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
