"""Writes triples as N-Triples, optionally with numbers."""

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
    """Formats triples as lines. Reading them with the same prefixes restores the labels.

    Numbers of a triple, such as its probability, are properties of an ``rdf:Statement`` with its
    subject, predicate and object: ``_:s0 <urn:sheafprop:probability> "0.9"^^xsd:double``.

    Args:
        triples: Label triples.
        prefixes: The prefixes that expand labels to IRIs.
        numbers: One number per triple, by name.
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
