"""What a file is before it is read as triples: compressed, or of a format with another reader."""

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
from typing import Any

from sheafprop.errors import DataError

__all__ = ["decompress", "file_suffix", "plain_name", "read_file", "refuse_other_formats"]

# A file may grow to this size, or by this factor where that is more. Labels of knowledge graphs
# shrink to a tenth or a fiftieth; what shrinks much further is made to fill the memory.
_MAX_BYTES = 1 << 28
_MAX_FACTOR = 200
_CHUNK = 1 << 20
#: Ends of names of compressed files.
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".bgz")

_SUFFIXES = {
    ".nt": "N-Triples",
    ".ntriples": "N-Triples",
    ".nq": "N-Quads",
    ".ttl": "Turtle",
    ".turtle": "Turtle",
    ".n3": "Notation3",
    ".trig": "TriG",
    ".rdf": "RDF/XML",
    ".owl": "an OWL ontology",
    ".ofn": "an OWL ontology",
    ".xml": "XML",
    ".obo": "an OBO ontology",
    ".json": "JSON",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".jsonld": "JSON-LD",
    ".graphml": "GraphML",
}
_TERM = r"(?:<[^<>\"\s]*>|_:\S+)"
_NTRIPLE = re.compile(
    rf"{_TERM}\s+<[^<>\"\s]*>\s+(?:{_TERM}|\"(?:[^\"\\]|\\.)*\"(?:@[\w-]+|\^\^<[^<>\s]*>)?)"
    rf"(?:\s+{_TERM})?\s*\.\s*(?:#.*)?"
)
_TURTLE = re.compile(r"(?:@prefix|@base)\s|(?:prefix\s+[\w-]*:|base)\s*<", re.IGNORECASE)
_OWL_FUNCTIONAL = re.compile(r"(?:Prefix|Ontology)\s*\(|Prefix:\s|Ontology:\s")
# Formats are recognised by lines that are no comments, among the first ones.
_LOOKED_AT = 50
_LINE = re.compile(r"^.*\S.*$", re.MULTILINE)  # one that is not blank


def plain_name(name: str) -> str:
    """The name of a file without the ending of a compression."""
    path = PurePath(name)
    return str(path.with_suffix("")) if path.suffix.lower() in _COMPRESSED else name


def file_suffix(name: str) -> str:
    """The ending that gives a file's format, in lower case: ``.csv`` of ``x.CSV.gz``."""
    return PurePath(plain_name(name)).suffix.lower()


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file as they are.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        return Path(path).expanduser().read_bytes()
    except IsADirectoryError as error:
        raise DataError(f"{os.fspath(path)}: is a folder; give its files") from error
    except OSError as error:
        raise DataError(f"{os.fspath(path)}: cannot be read ({error.strerror or error})") from error


def decompress(content: bytes, source: str) -> bytes:
    """The content of a gzip, bzip2, xz or Zstandard file; any other content as it is.

    Raises:
        DataError: If the file is truncated or damaged, expands beyond 256 MiB and 200 times its
            size, or is an archive of files.
    """
    for mark, (kind, opened) in _COMPRESSIONS.items():
        if mark.match(content):
            expanded = _expand(content, source, kind, opened)
            break
    else:
        expanded = content
    is_tar = expanded[257:262] == b"ustar" and b"\0" in expanded[:257]
    if expanded.startswith(b"PK\x03\x04") or is_tar:
        kind = "ZIP" if expanded.startswith(b"PK") else "tar"
        raise DataError(
            f"{source}: this is a {kind} archive of files. Unpack it, and give the files in it."
        )
    return expanded


def _expand(content: bytes, source: str, kind: str, opened: Callable[[Any], Any]) -> bytes:
    limit = max(_MAX_BYTES, _MAX_FACTOR * len(content))
    parts: list[bytes] = []
    size = 0
    try:
        with opened(io.BytesIO(content)) as stream:
            while part := stream.read(_CHUNK):
                size += len(part)
                if size > limit:
                    raise DataError(
                        f"{source}: {len(content):,} bytes of {kind} expand to more than "
                        f"{limit:,}. If that is right, decompress the file, and give the plain one."
                    )
                parts.append(part)
    except EOFError as error:
        raise DataError(
            f"{source}: the {kind} file is truncated: it ends after {size:,} bytes of text. "
            "Get it again."
        ) from error
    except ImportError as error:
        raise DataError(
            f"{source}: {kind} files need Python 3.14. Decompress the file, as by 'zstd -d'."
        ) from error
    except (OSError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise DataError(
            f"{source}: the {kind} file is damaged after {size:,} bytes of text ({error}). "
            "Get it again."
        ) from error
    return b"".join(parts)


def _open_zstd(stream: Any) -> Any:
    module: Any = importlib.import_module("compression.zstd")  # since Python 3.14
    return module.ZstdFile(stream)


# None of these beginnings can be that of UTF-8 text but bzip2's, which has a longer mark therefore.
_COMPRESSIONS: dict[re.Pattern[bytes], tuple[str, Callable[[Any], Any]]] = {
    re.compile(rb"\x1f\x8b"): ("gzip", lambda stream: gzip.GzipFile(fileobj=stream)),
    re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"): ("bzip2", bz2.BZ2File),
    re.compile(rb"\xfd7zXZ\x00"): ("xz", lzma.LZMAFile),
    re.compile(rb"\x28\xb5\x2f\xfd"): ("Zstandard", _open_zstd),
}


def refuse_other_formats(text: str, source: str) -> None:
    """Raises :class:`DataError` for RDF, OWL, OBO, JSON and XML, recognised by name or content."""
    found = _by_content(text)
    kind, line = found if found is not None else (_SUFFIXES.get(file_suffix(source)), 0)
    if kind is None:
        return
    where = f", line {line}" if line else ""
    raise DataError(
        f"{source}{where}: this is {kind}, which cannot be read as triples. Convert it to lines of "
        "head<TAB>relation<TAB>tail, or give format='tsv' (--input-format tsv) to read its lines "
        "as they are."
    )


def _by_content(text: str) -> tuple[str, int] | None:
    for place, found in enumerate(islice(_LINE.finditer(text), _LOOKED_AT)):
        kind = _kind_of_line(found[0].strip(), place == 0, text)
        if kind is not None:
            return kind, text.count("\n", 0, found.start()) + 1
    return None


def _kind_of_line(line: str, is_first: bool, text: str) -> str | None:
    if line[0] in "<_" and "." in line and _NTRIPLE.fullmatch(line):
        return "N-Triples"
    if _TURTLE.match(line) and "<" in line:
        return "Turtle"
    if not is_first:
        return None
    if line.startswith(("<?xml", "<!DOCTYPE", "<rdf:RDF", "<Ontology", "<graphml")):
        beginning = text[:20_000]
        if "owl" in beginning.lower():
            return "an OWL ontology"
        return "RDF/XML" if "rdf:RDF" in beginning else "XML"
    if line.startswith("format-version:") or line == "[Term]":
        return "an OBO ontology"
    if _OWL_FUNCTIONAL.match(line):
        return "an OWL ontology"
    if line in ("{", "[") or (line[:1] in "{[" and "\t" not in line and line[1:2] in '"{['):
        return "JSON lines" if _is_object(line) else "JSON"
    return None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
