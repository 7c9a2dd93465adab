"""Reads N-Triples, N-Quads, Turtle, TriG and RDF/XML by pyoxigraph."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from sheafprop.data.file_kinds import GRAPH_FORMATS
from sheafprop.data.formats.facts import Facts
from sheafprop.data.formats.prefixes import COMMON
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.input_file import InputFile

_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_RDFS = "http://www.w3.org/2000/01/rdf-schema#"
_OWL = "http://www.w3.org/2002/07/owl#"
_TYPE = f"{_RDF}type"
_VOCABULARIES = (_OWL, _RDFS, _RDF)
# Terms in the header of an ontology.
_HEADER = {
    f"{_OWL}{name}"
    for name in (
        *("imports", "versionIRI", "priorVersion", "backwardCompatibleWith"),
        "incompatibleWith",
    )
}
_SUPERCLASS = {f"{_RDFS}subClassOf", f"{_OWL}equivalentClass"}
_PROPERTY = f"{_OWL}onProperty"
_FILLER = {f"{_OWL}someValuesFrom", f"{_OWL}hasValue"}
_OBO = COMMON["obo"]
_DEPRECATED = f"{_OWL}deprecated"
_ALTERNATIVE = f"{COMMON['oboInOwl']}hasAlternativeId"
_REPLACED_BY = f"{COMMON['IAO']}0100001"
# Number of bytes parsed at once.
_CHUNK = 1 << 20
_PLACE = re.compile(r"^Parser error at line \d+ .*?: | \(line \d+\)$")
_SHOWN = 100


def read_rdf(file: InputFile, format: str, facts: Facts, progress: bool = False) -> str:
    """Reads triples of IRIs, and literals.

    A class restriction ``A rdfs:subClassOf [owl:onProperty p; owl:someValuesFrom B]`` becomes the
    fact ``A p B``. Other triples with blank nodes are skipped, as are declarations (``rdf:type``
    with a term of OWL, RDFS or RDF, and the header of an ontology). Alternative ids
    (``oboInOwl:hasAlternativeId``) and replaced terms (``IAO:0100001``) are replaced by their
    terms. Imports are not followed, and declarations of XML entities are an error.

    Returns:
        What the places of facts count.

    Raises:
        DataError: If pyoxigraph is not installed, or the file is malformed. The message has the
            line and its content.
    """
    try:
        import pyoxigraph
    except ImportError as error:
        raise DataError(
            f"{file.source}: reading {facts.kind} needs pyoxigraph: pip install 'sheafprop[rdf]'"
        ) from error
    is_lines = format in ("ntriples", "nquads")
    with file.open(progress) as stream:
        if is_lines:
            found = _read_lines(stream, file, format, pyoxigraph)
        else:
            found = _read_stream(stream, file, format, pyoxigraph)
        _collect(found, facts, pyoxigraph)
    return "line" if is_lines else "triple"


_FORMATS = {
    "ntriples": "N_TRIPLES",
    "nquads": "N_QUADS",
    "turtle": "TURTLE",
    "trig": "TRIG",
    "rdfxml": "RDF_XML",
}
assert set(_FORMATS) < set(GRAPH_FORMATS)


def _kind(format: str, library: Any) -> Any:
    return getattr(library.RdfFormat, _FORMATS[format])


def _read_lines(
    stream: Any, file: InputFile, format: str, library: Any
) -> Iterator[tuple[int, Any]]:
    """Yields the statements of a line-based format, with their lines."""
    first, rest = 1, b""
    while part := stream.read(_CHUNK):
        part = rest + part
        cut = part.rfind(b"\n") + 1
        part, rest = part[:cut], part[cut:]
        yield from _parse_lines(part, first, file, format, library)
        first += part.count(b"\n")
    yield from _parse_lines(rest, first, file, format, library)


def _parse_lines(
    part: bytes, first: int, file: InputFile, format: str, library: Any
) -> Iterator[tuple[int, Any]]:
    # The parser would count a lone carriage return as a line end.
    if b"\r" in part and b"\r" in part.replace(b"\r\n", b""):
        clean = part.replace(b"\r\n", b"\n")
        number = first + clean.count(b"\n", 0, clean.index(b"\r"))
        raise DataError(
            f"{file.source}, line {number}: a carriage return inside the line. Save the file with "
            "LF or CRLF line ends."
        )
    try:
        found = list(library.parse(part, format=_kind(format, library)))
    except SyntaxError as error:
        raise _error(file, format, error, first - 1 + (error.lineno or 1)) from error
    lines: Any = range(first, first + len(found))
    if part.count(b"\n") + (part[-1:] not in (b"", b"\n")) != len(found):
        texts = enumerate(part.split(b"\n"), first)
        lines = [n for n, text in texts if text.strip() and text.strip()[:1] != b"#"]
    yield from zip(lines, found, strict=True)


def _read_stream(
    stream: Any, file: InputFile, format: str, library: Any
) -> Iterator[tuple[int, Any]]:
    """Yields the statements of any other format, numbered."""
    source = _CheckedXML(stream, file.source) if format == "rdfxml" else stream
    try:
        yield from enumerate(library.parse(source, format=_kind(format, library)), 1)
    except SyntaxError as error:
        number = error.lineno or _find_line(file, format, library)
        raise _error(file, format, error, number) from error


class _CheckedXML:
    """A stream of XML that expat checks for well-formedness and entities."""

    def __init__(self, stream: Any, source: str):
        self._read, self._source, self._left = stream.read, source, b""
        self._parser = expat.ParserCreate()
        self._parser.EntityDeclHandler = self._refuse_entity

    def _refuse_entity(self, name: str, *_: Any) -> None:
        raise DataError(
            f"{self._source}, line {self._parser.CurrentLineNumber}: XML entities are not expanded "
            f"(got <!ENTITY {name}). Save it as RDF/XML without entities, or as Turtle, as "
            "'robot convert' does."
        )

    def read(self, size: int) -> bytes:
        if not self._left:
            self._left = self._read(_CHUNK)
            try:
                self._parser.Parse(self._left, not self._left)
            except expat.ExpatError as error:
                raise _XMLError(expat.errors.messages[error.code], error.lineno) from error
        part, self._left = self._left[:size], self._left[size:]
        return part


class _XMLError(SyntaxError):
    def __init__(self, text: str, line: int):
        super().__init__(text)
        self.lineno = line


def _find_line(file: InputFile, format: str, library: Any) -> int:
    """Finds the line of an error that has none, by parsing line by line."""

    class Lines:
        count = 0

        def __init__(self, stream: Any):
            self._stream, self._left = stream, b""

        def read(self, size: int) -> bytes:
            if not self._left:
                self._left = self._stream.readline()
                self.count += bool(self._left)
            part, self._left = self._left[:size], self._left[size:]
            return part

    with file.open() as stream:
        lines = Lines(stream)
        try:
            for _ in library.parse(lines, format=_kind(format, library)):
                pass
        except SyntaxError:
            pass
        return lines.count


def _error(file: InputFile, format: str, error: SyntaxError, line: int) -> DataError:
    title = GRAPH_FORMATS[format]
    reason = _PLACE.sub("", str(error.msg))
    content = file.line(line)
    shown = content if len(content) <= _SHOWN else f"{content[:_SHOWN]}..."
    return DataError(f"{file.source}, line {line}: not valid {title}: {reason} (got {shown!r})")


def _collect(found: Iterator[tuple[int, Any]], facts: Facts, library: Any) -> None:
    named, blank, literal = library.NamedNode, library.BlankNode, library.Literal
    left_out, name = facts.left_out, facts.name
    superclasses: list[tuple[str, str, int]] = []
    restrictions: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for place, quad in found:
        head, tail, relation = quad.subject, quad.object, quad.predicate.value
        kind = type(tail)
        if type(head) is blank:
            left_out["triples of blank nodes"] += 1
            if kind is named and (relation == _PROPERTY or relation in _FILLER):
                key = relation if relation == _PROPERTY else "filler"
                restrictions[head.value][key] = tail.value
        elif kind is named:
            if (relation == _TYPE and tail.value.startswith(_VOCABULARIES)) or relation in _HEADER:
                left_out["declarations"] += 1
                if relation == _TYPE:
                    facts.terms.add(name(head.value))
            elif relation == _REPLACED_BY:
                left_out["declarations"] += 1
                facts.add_alternative(name(head.value), name(tail.value))
            else:
                facts.add(name(head.value), name(relation), name(tail.value), place)
        elif kind is literal:
            if relation == _DEPRECATED and tail.value in ("true", "1"):
                facts.obsolete.add(name(head.value))
            elif relation == _ALTERNATIVE:
                for label in _labels_of_id(tail.value, facts):
                    facts.add_alternative(label, name(head.value))
            label = name(relation) + (f"@{tail.language}" if tail.language else "")
            facts.add_literal(name(head.value), label, tail.value)
        elif kind is blank:
            left_out["triples of blank nodes"] += 1
            if relation in _SUPERCLASS:
                superclasses.append((head.value, tail.value, place))
        else:
            left_out["triples about triples"] += 1
    count = 0
    for entity, node, place in superclasses:
        restriction = restrictions[node]
        if len(restriction) == 2:
            relation, filler = restriction[_PROPERTY], restriction["filler"]
            facts.add(name(entity), name(relation), name(filler), place)
            count += 1
    if count:
        facts.notes.append(f"class restrictions read as facts ({count:,})")


def _labels_of_id(text: str, facts: Facts) -> set[str]:
    """Returns the labels of an OBO id, as ``X:1`` and from the IRI of its term."""
    label = facts.name(text) if "://" in text else text
    return {label, facts.name(_OBO + text.replace(":", "_", 1))}
