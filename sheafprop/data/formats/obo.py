"""Reads OBO ontologies by fastobo."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from sheafprop.data.formats.facts import Facts
from sheafprop.data.text_rows import decode
from sheafprop.errors import DataError

if TYPE_CHECKING:
    from sheafprop.data.input_file import InputFile

# The clauses that are parsed. Errors in others, such as a malformed synonym, are ignored.
_CLAUSE = re.compile(
    r"(id|name|alt_id|is_a|relationship|is_obsolete|replaced_by|property_value):(\s|$)"
)
# Clauses of OBO 1.2 and 1.4 that do not refer to other terms. All other clauses that are not read,
# including misspelled ones, are counted.
_PLAIN = frozenset(
    {
        *("builtin", "comment", "consider", "created_by", "creation_date", "def", "is_anonymous"),
        *("exact_synonym", "broad_synonym", "narrow_synonym", "related_synonym", "synonym"),
        *("modification_date", "namespace", "subset", "xref", "xref_analog", "xref_unk"),
    }
)
_FRAME = "[Term]"
_ANY_FRAME = re.compile(r"\[\w+\]$")
# Clauses of a relation: its short name, and its term in OWL.
_SHORT = re.compile(r"id:\s*([A-Za-z]\w*)\s*(?:!.*)?")
_RELATION_TERM = re.compile(r"xref:\s*((?:BFO|RO):\d+)\b.*")


def read_obo(file: InputFile, facts: Facts, progress: bool = False) -> str:
    """Reads ``is_a`` and ``relationship`` of terms, and property values that are terms.

    Obsolete terms are skipped. In facts, alternative ids (``alt_id``) and replaced terms
    (``replaced_by``) are replaced by their terms, and the terms of relations in OWL (``xref:
    BFO:0000050``) by their short names (``part_of``). Frames with the same id are joined. Names and
    other property values are literals. Other frames are skipped, and imports are not followed.
    Other clauses that may refer to terms, such as ``intersection_of``, and unknown ones are skipped
    and counted by name.

    Returns:
        What the places of facts count.

    Raises:
        DataError: If fastobo is not installed, or the file is malformed. The message has the line
            and its content.
    """
    try:
        import fastobo
    except ImportError as error:
        raise DataError(
            f"{file.source}: reading OBO needs fastobo: pip install 'sheafprop[obo]'"
        ) from error
    with file.open(progress) as stream:
        text = decode(stream.read(), file.source)
    lines = text.split("\n")
    kept: list[str] = []
    numbers: list[int] = []
    is_read, frames, short = False, [0, 0], ""
    for number, line in enumerate(map(str.strip, lines), 1):
        wanted = is_clause = False
        if _ANY_FRAME.match(line):
            is_read = wanted = line == _FRAME
            frames[is_read] += 1
            short = ""
        elif not is_read and (match := _SHORT.fullmatch(line)):
            short = match[1]
        elif short and (match := _RELATION_TERM.fullmatch(line)):
            facts.add_alternative(match[1], short)
        elif is_read and line and line[0] != "!":
            if ":" not in line:
                raise _error(file.source, number, line, "expected 'tag: value'")
            wanted = is_clause = _CLAUSE.match(line) is not None
            tag = line.partition(":")[0].strip()
            if " " in tag:
                raise _error(file.source, number, line, "expected 'tag: value'")
            if not is_clause and tag not in _PLAIN:
                facts.left_out[f"clauses {tag!r}"] += 1
        if is_clause:
            numbers.append(number)
        # Blank lines replace skipped ones, which keeps line numbers.
        kept.append(line if wanted else "")
    content = "\n".join([*kept, ""]).encode()
    places = iter(numbers)
    repeated = 0
    try:
        for frame in fastobo.iter(io.BytesIO(content), ordered=True, threads=1):
            entity = _label(frame.id, facts)
            next(places)
            repeated += entity in facts.terms
            facts.terms.add(entity)
            for clause in frame:
                _add(clause, entity, next(places), facts)
    except SyntaxError as error:
        number = min(error.lineno or 1, len(lines))
        raise _error(file.source, number, lines[number - 1], str(error.msg)) from error
    facts.left_out["frames that are not terms"] += frames[False]
    if repeated:
        facts.notes.append(f"frames joined with an earlier one of the same id ({repeated:,})")
    return "line"


def _add(clause: Any, entity: str, line: int, facts: Facts) -> None:
    tag = clause.raw_tag()
    if tag == "is_a":
        facts.add(entity, tag, _label(clause.term, facts), line)
    elif tag == "relationship":
        facts.add(entity, _label(clause.typedef, facts), _label(clause.term, facts), line)
    elif tag == "alt_id":
        facts.add_alternative(_label(clause.alt_id, facts), entity)
    elif tag == "replaced_by":
        facts.add_alternative(entity, _label(clause.term, facts))
    elif tag == "is_obsolete":
        if clause.obsolete:
            facts.obsolete.add(entity)
    elif tag == "name":
        facts.add_literal(entity, "name", clause.name.strip())
    elif tag == "property_value":
        value = clause.property_value
        name = _label(value.relation, facts)
        if hasattr(value, "datatype"):
            facts.add_literal(entity, name, str(value.value))
        else:
            facts.add(entity, name, _label(value.value, facts), line)


def _label(identifier: Any, facts: Facts) -> str:
    """Returns an identifier without escapes; shortens IRIs as in RDF."""
    kind = type(identifier).__name__
    if kind == "PrefixedIdent":
        return facts.intern(f"{identifier.prefix}:{identifier.local}")
    return facts.name(str(identifier)) if kind == "Url" else facts.intern(identifier.unescaped)


def _error(source: str, number: int, line: str, reason: str) -> DataError:
    return DataError(f"{source}, line {number}: not valid OBO: {reason} (got {line[:100]!r})")
