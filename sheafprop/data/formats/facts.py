"""Collects the facts of a graph format with their places, and counts what is skipped."""

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sheafprop.data.column_names import LabelTriples
from sheafprop.data.formats.prefixes import COMMON, Prefixes
from sheafprop.data.text_rows import LocatedRows

#: Receives the entity, the property and the value of a literal.
LiteralSink = Callable[[str, str, str], object]

# A term of an ontology whose prefix is not built in.
_OTHER_TERM = re.compile(r"obo:([A-Za-z]\w*?)_(\d+)")


class Facts:
    """Collects the facts of a file.

    Args:
        source (str): The file.
        kind (str): The title of the format.
        prefixes (Prefixes): The prefixes that shorten IRIs.
        literals (callable, optional): Receives the literals. (default: they are only counted)
        is_guess (bool): Whether the format is inferred from the content, not from the name.

    Attributes:
        terms (set): Labels of the terms that the file describes.
        obsolete (set): Labels of obsolete terms, whose facts and literals are skipped.
    """

    def __init__(
        self,
        source: str,
        kind: str,
        prefixes: Prefixes,
        literals: LiteralSink | None = None,
        is_guess: bool = False,
    ):
        self.source, self.kind, self.is_guess = source, kind, is_guess
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []
        self.terms: set[str] = set()
        self.obsolete: set[str] = set()
        self._meanings: dict[str, set[str]] = {}
        self._literals: list[tuple[str, str, str]] = []
        self._shorten, self._sink = prefixes.shorten, literals
        self._names: dict[str, str] = {}
        self._labels: list[str] = []
        self._places: list[int] = []

    def name(self, iri: str) -> str:
        """Returns the label of an IRI."""
        label = self._names.get(iri)
        if label is None:
            label = self._names[iri] = self._shorten(iri)
        return label

    def intern(self, label: str) -> str:
        """Returns one object for equal labels."""
        return self._names.setdefault(label, label)

    def add(self, head: str, relation: str, tail: str, place: int) -> None:
        """Adds a fact and its line or number."""
        self._labels += (head, relation, tail)
        self._places.append(place)

    def add_literal(self, entity: str, name: str, value: str) -> None:
        """Adds a literal of an entity."""
        if self._sink is None:
            self.left_out["literals"] += 1
        else:
            self._literals.append((entity, name, value))

    def add_alternative(self, label: str, term: str) -> None:
        """Adds an alternative label of a term. Labels of several terms are not replaced."""
        self._meanings.setdefault(label, set()).add(term)

    def rows(self, word: str) -> LocatedRows:
        """Returns the facts; replaces alternative labels and drops facts of obsolete terms.

        Passes the literals on and warns about what is skipped.

        Args:
            word: What the numbers of places count, such as ``"line"``.
        """
        triples: LabelTriples = np.empty(len(self._labels), dtype=object)
        triples[:] = self._labels
        triples, places = triples.reshape(-1, 3), self._places
        aliases = self._aliases()
        if self.obsolete:
            # A replaced term is obsolete, but may be the tail of a fact of another term.
            kept = [
                row
                for row, (head, _, tail) in enumerate(triples.tolist())
                if head not in self.obsolete and (tail not in self.obsolete or tail in aliases)
            ]
            self.left_out["facts of obsolete terms"] += len(triples) - len(kept)
            triples, places = triples[kept], [places[row] for row in kept]
        triples, count = follow_aliases(triples, aliases)
        if count:
            self.notes.append(f"alternative ids replaced by their terms ({count:,})")
        self._pass_literals(aliases)
        self._note_other_terms(triples)
        notes = [f"{self.source}: read as {self.kind}", *self.notes]
        if lost := [f"{what} ({count:,})" for what, count in self.left_out.items() if count]:
            notes.append(f"skipped: {', '.join(lost)}")
        if len(notes) > 1 or self.is_guess:
            warnings.warn("; ".join(notes), stacklevel=5)
        numbers: Sequence[int] = places
        return LocatedRows(triples, ((f"{self.source}, {word}", numbers),), aliases)

    def _aliases(self) -> dict[str, str]:
        """Returns the terms of alternative labels, if unique."""
        own = self.terms - self.obsolete
        known = {
            label: next(iter(terms))
            for label, terms in self._meanings.items()
            if len(terms) == 1 and label not in own
        }
        if count := len(self._meanings) - len(known):
            text = "alternative ids of several terms, or that are terms themselves, not replaced"
            self.notes.append(f"{text} ({count:,})")
        found = {}
        for label in known:
            term, seen = label, {label}
            while term in known and known[term] not in seen:
                seen.add(term := known[term])
            if term not in known and term not in self.obsolete:
                found[label] = term
        return found

    def _pass_literals(self, aliases: Mapping[str, str]) -> None:
        kept = [literal for literal in self._literals if literal[0] not in self.obsolete]
        self.left_out["literals of obsolete terms"] += len(self._literals) - len(kept)
        for entity, name, value in kept:
            assert self._sink is not None
            self._sink(aliases.get(entity, entity), name, value)
        if kept:
            self.notes.append(f"literals written ({len(kept):,})")

    def _note_other_terms(self, triples: LabelTriples) -> None:
        """Adds a note on IRIs of ontologies that have other labels in OBO files and tables."""
        found: dict[str, str] = {}
        for label in self._names.values():
            if label.startswith("obo:") and (match := _OTHER_TERM.fullmatch(label)):
                found.setdefault(match[1], f"{label!r} is '{match[1]}:{match[2]}'")
        if found and len(triples):
            name, example = next(iter(found.items()))
            line = json.dumps({name: f"{COMMON['obo']}{name}_"})
            self.notes.append(
                f"prefixes that are not built in, so that labels differ from those of OBO files: "
                f"{', '.join(sorted(found)[:5])} ({example} there); --prefixes FILE with {line} "
                "makes them equal"
            )


def follow_aliases(triples: LabelTriples, aliases: Mapping[str, str]) -> tuple[LabelTriples, int]:
    """Replaces alternative labels; returns the triples and the number of replacements."""
    if not aliases:
        return triples, 0
    labels = triples.ravel().tolist()
    places = [place for place, label in enumerate(labels) if label in aliases]
    if places:
        triples = triples.copy()
        flat = triples.reshape(-1)
        flat[places] = [aliases[labels[place]] for place in places]
    return triples, len(places)
