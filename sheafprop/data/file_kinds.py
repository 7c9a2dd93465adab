"""Detects the compression and the format of a file."""

import bz2
import gzip
import importlib
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from sheafprop.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

# Limits on the decompressed size; the larger of the two applies. Knowledge graphs compress by a
# factor of 10 to 50. Files that compress much further are made to fill the memory.
_MAX_BYTES = 1 << 28
_MAX_FACTOR = 200
_CHUNK = 1 << 20
#: Suffixes of compressed files.
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".bgz")

#: Graph formats that can be read, by the names of the option ``format``.
GRAPH_FORMATS = {
    "ntriples": "N-Triples",
    "nquads": "N-Quads",
    "turtle": "Turtle",
    "trig": "TriG",
    "rdfxml": "RDF/XML",
    "obo": "OBO",
    "jsonl": "JSON lines",
}
#: Graph formats whose labels are or stand for IRIs.
IRI_FORMATS = tuple(name for name in GRAPH_FORMATS if name != "jsonl")
_SUFFIXES = {
    ".nt": "N-Triples",
    ".ntriples": "N-Triples",
    ".nq": "N-Quads",
    ".ttl": "Turtle",
    ".turtle": "Turtle",
    ".trig": "TriG",
    ".n3": "Notation3",
    ".rdf": "RDF/XML",
    ".owl": "RDF/XML",
    ".xml": "XML",
    ".ofn": "OWL in functional or Manchester syntax",
    ".omn": "OWL in functional or Manchester syntax",
    ".owx": "OWL/XML",
    ".obo": "OBO",
    ".json": "JSON",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".jsonld": "JSON-LD",
    ".graphml": "GraphML",
}
_RDF_TEXT = ("N-Triples", "N-Quads", "Turtle", "TriG")
#: Suffixes of files that are read as graphs.
GRAPH_ENDINGS = tuple(end for end, kind in _SUFFIXES.items() if kind in GRAPH_FORMATS.values())
_OWL_ADVICE = "Save it as RDF/XML or Turtle, as 'robot convert' and Protege do"
_ADVICE = {
    "OWL/XML": _OWL_ADVICE,
    "OWL in functional or Manchester syntax": _OWL_ADVICE,
    "JSON": "Give JSON lines, an object with subject, predicate and object in each",
    "JSON-LD": "Save it as N-Triples or Turtle",
    "Notation3": "Save it as N-Triples or Turtle",
}
_TERM = r"(?:<[^<>\"\s]*>|_:\S+)"
_NTRIPLE = re.compile(
    rf"{_TERM}\s+<[^<>\"\s]*>\s+(?:{_TERM}|\"(?:[^\"\\]|\\.)*\"(?:@[\w-]+|\^\^<[^<>\s]*>)?)"
    rf"(?:\s+(?P<graph>{_TERM}))?\s*\.\s*(?:#.*)?"
)
_TURTLE = re.compile(r"(?:@prefix|@base)\s|(?:prefix\s+[\w-]*:|base)\s*<", re.IGNORECASE)
_OWL_FUNCTIONAL = re.compile(r"(?:Prefix|Ontology)\s*\(|Prefix:\s|Ontology:\s")
# Formats are recognized from the first lines of a file.
_LOOKED_AT = 50
_LINE = re.compile(r"^.*\S.*$", re.MULTILINE)  # one that is not blank


def plain_name(name: str) -> str:
    """Returns the name of a file without the suffix of a compression."""
    path = PurePath(name)
    return str(path.with_suffix("")) if path.suffix.lower() in _COMPRESSED else name


def file_suffix(name: str) -> str:
    """Returns the suffix that names a file's format, in lower case: ``.csv`` for ``x.CSV.gz``."""
    return PurePath(plain_name(name)).suffix.lower()


def named_format(name: str) -> str | None:
    """Returns the title of the graph format that a file's suffix names, None for tables."""
    return _SUFFIXES.get(file_suffix(name))


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of a file.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        return Path(path).expanduser().read_bytes()
    except IsADirectoryError as error:
        raise DataError(f"{os.fspath(path)}: is a folder; give the files in it") from error
    except OSError as error:
        raise DataError(f"{os.fspath(path)}: cannot be read ({error.strerror or error})") from error


def decompress(content: bytes, source: str) -> bytes:
    """Decompresses gzip, bzip2, xz and Zstandard; returns any other content unchanged.

    Raises:
        DataError: If the file is truncated or damaged, expands to more than 256 MiB and more than
            200 times its size, or is an archive.
    """
    expanded = expand_stream(io.BytesIO(content), content[:16], len(content), source).read()
    refuse_archives(expanded[:512], source)
    return expanded


def read_parquet(content: bytes, source: str) -> "pd.DataFrame":
    """Reads a Parquet file as a data frame.

    Raises:
        DataError: If pyarrow is not installed, or the content is not a Parquet file.
    """
    import pandas as pd

    try:
        return pd.read_parquet(io.BytesIO(content))
    except ImportError as error:
        raise DataError(
            f"{source}: reading Parquet needs pyarrow: pip install 'sheafprop[parquet]'"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{source}: this is not a Parquet file ({error})") from error


class _Expanded(io.RawIOBase):
    """The decompressed content of a file, with a limit and with errors that name the file."""

    def __init__(
        self, stream: Any, opened: Callable[[Any], Any], kind: str, size: int, source: str
    ):
        super().__init__()
        self._kind, self._source, self._packed = kind, source, size
        self._limit, self._size = max(_MAX_BYTES, _MAX_FACTOR * size), 0
        self._raw = stream
        try:
            self._stream = opened(stream)
        except ImportError as error:
            raise DataError(
                f"{source}: reading {kind} needs backports.zstd before Python 3.14: pip install "
                "'sheafprop[zstd]'. Or decompress the file, as by 'zstd -d'."
            ) from error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        what = f"{self._source}: the {self._kind} file is"
        try:
            part = self._stream.read(min(len(buffer), _CHUNK))
        except EOFError as error:
            raise DataError(
                f"{what} truncated: it ends after {self._size:,} bytes of text. Download it again."
            ) from error
        except DataError:
            raise
        except _damages() as error:
            raise DataError(
                f"{what} damaged after {self._size:,} bytes of text ({error}). Download it again."
            ) from error
        self._size += len(part)
        if self._size > self._limit:
            raise DataError(
                f"{self._source}: {self._packed:,} bytes of {self._kind} expand to more than "
                f"{self._limit:,}. If this is expected, decompress the file first."
            )
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def expand_stream(stream: Any, mark: bytes, size: int, source: str) -> Any:
    """Returns a stream of the content of a file, decompressed if it is compressed.

    Args:
        stream: The file, positioned at its start.
        mark: Its first bytes.
        size: The size of the file, which limits the decompressed size.
        source: The name of the file, for error messages.
    """
    for known, (kind, opened) in _COMPRESSIONS.items():
        if known.match(mark):
            return io.BufferedReader(_Expanded(stream, opened, kind, size, source), _CHUNK)
    return stream


def refuse_archives(beginning: bytes, source: str) -> None:
    """Raises a :class:`DataError` if the first 512 bytes are those of a ZIP or tar archive."""
    is_tar = beginning[257:262] == b"ustar" and b"\0" in beginning[:257]
    if beginning.startswith(b"PK\x03\x04") or is_tar:
        kind = "ZIP" if beginning.startswith(b"PK") else "tar"
        raise DataError(f"{source}: this is a {kind} archive. Unpack it and give the files in it.")


def _zstd() -> Any:
    try:
        return importlib.import_module("compression.zstd")  # since Python 3.14
    except ImportError:
        return importlib.import_module("backports.zstd")


def _damages() -> tuple[type[Exception], ...]:
    """Returns the exceptions that damaged files cause."""
    known = (OSError, zlib.error, lzma.LZMAError, ValueError)
    try:
        return (*known, _zstd().ZstdError)
    except ImportError:
        return known


def _open_zstd(stream: Any) -> Any:
    return _zstd().ZstdFile(stream)


# Text in UTF-8 cannot start with any of these bytes, except for those of bzip2, which is why
# bzip2 is matched by more of them.
_COMPRESSIONS: dict[re.Pattern[bytes], tuple[str, Callable[[Any], Any]]] = {
    re.compile(rb"\x1f\x8b"): ("gzip", lambda stream: gzip.GzipFile(fileobj=stream)),
    re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"): ("bzip2", bz2.BZ2File),
    re.compile(rb"\xfd7zXZ\x00"): ("xz", lzma.LZMAFile),
    re.compile(rb"\x28\xb5\x2f\xfd"): ("Zstandard", _open_zstd),
}


def recognize_format(text: str, source: str) -> str | None:
    """Infers the format of a file from its first lines and its name, None for a table.

    Raises:
        DataError: If the format cannot be read as triples.
    """
    named = named_format(source)
    kind, line = _by_content(text) or (named, 0)
    if kind in _RDF_TEXT and named in _RDF_TEXT[1:]:
        kind = named  # lines of N-Triples are valid in these formats
    if kind is None or kind in GRAPH_FORMATS.values():
        return next((name for name, title in GRAPH_FORMATS.items() if title == kind), None)
    where = f", line {line}" if line else ""
    advice = _ADVICE.get(kind, "Convert it to lines of head<TAB>relation<TAB>tail")
    raise DataError(
        f"{source}{where}: this is {kind}, which cannot be read as triples. {advice}, or give "
        "format='tsv' (--input-format tsv) to read its lines as they are."
    )


def _by_content(text: str) -> tuple[str, int] | None:
    first = None
    for place, found in enumerate(islice(_LINE.finditer(text), _LOOKED_AT)):
        kind = _kind_of_line(found[0].strip(), place == 0, text)
        # Lines of N-Triples are valid in other formats too.
        if kind is not None and (first is None or kind in _RDF_TEXT):
            first = kind, text.count("\n", 0, found.start()) + 1
            if kind != "N-Triples":
                break
    return first


def _kind_of_line(line: str, is_first: bool, text: str) -> str | None:
    if line[0] in "<_" and "." in line and (found := _NTRIPLE.fullmatch(line)):
        return "N-Triples" if found["graph"] is None else "N-Quads"
    if _TURTLE.match(line) and "<" in line:
        return "Turtle"
    if not is_first:
        return None
    if line.startswith(("<?xml", "<!DOCTYPE", "<!--", "<rdf:RDF", "<Ontology", "<graphml")):
        beginning = text[:20_000]
        if "<rdf:RDF" in beginning:
            return "RDF/XML"
        return "OWL/XML" if "<Ontology" in beginning else "XML"
    if line.startswith("format-version:") or line == "[Term]":
        return "OBO"
    if _OWL_FUNCTIONAL.match(line):
        return "OWL in functional or Manchester syntax"
    if line in ("{", "[") or (line[:1] in "{[" and "\t" not in line and line[1:2] in '"{['):
        return "JSON lines" if _is_object(line) else "JSON"
    return None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
