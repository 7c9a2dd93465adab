"""Triples as N-Triples, with numbers that belong to them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sheafprop.data.formats.prefixes import COMMON, Prefixes

_RDF = COMMON["rdf"]
_DOUBLE = f"{COMMON['xsd']}double"


def format_ntriples(
    triples: Iterable[Sequence[str]],
    prefixes: Prefixes,
    numbers: Mapping[str, Sequence[float]] | None = None,
) -> Iterator[bytes]:
    """The lines of triples, whose labels are read back as they are with the same prefixes.

    Numbers of a triple, such as its probability, are those of an ``rdf:Statement`` with its
    subject, predicate and object: ``_:s0 <urn:sheafprop:probability> "0.9"^^xsd:double``.

    Args:
        triples: The labels.
        prefixes: How labels become IRIs.
        numbers: A number for every triple, by names that are words.
    """
    iris: dict[str, str] = {}

    def iri(label: str) -> str:
        if label not in iris:
            iris[label] = f"<{prefixes.expand(label)}>"
        return iris[label]

    columns = dict(numbers or {})
    for row, labels in enumerate(triples):
        terms = [iri(label) for label in labels]
        lines = [f"{' '.join(terms)} ."]
        if columns:
            node = f"_:s{row}"
            lines.append(f"{node} <{_RDF}type> <{_RDF}Statement> .")
            parts = zip(("subject", "predicate", "object"), terms, strict=True)
            lines += [f"{node} <{_RDF}{part}> {term} ." for part, term in parts]
            for name, values in columns.items():
                value = _double(values[row])
                lines.append(f'{node} <urn:sheafprop:{name}> "{value}"^^<{_DOUBLE}> .')
        yield ("\n".join(lines) + "\n").encode()


def _double(value: float) -> str:
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return repr(float(value)) if value == value else "NaN"
