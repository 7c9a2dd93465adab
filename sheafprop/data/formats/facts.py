"""What a reader of a graph format finds: facts with their places, and what it leaves out."""

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sheafprop.data.column_names import LabelTriples
from sheafprop.data.formats.prefixes import COMMON, Prefixes
from sheafprop.data.text_rows import LocatedRows

#: Takes the entity, the property and the value of a literal.
LiteralSink = Callable[[str, str, str], object]

# A term of an ontology whose prefix is not in the table.
_OTHER_TERM = re.compile(r"obo:([A-Za-z]\w*?)_(\d+)")


class Facts:
    """Collects the facts of a file, its labels once each.

    Args:
        source (str): The file.
        kind (str): What it is read as.
        prefixes (Prefixes): How IRIs are shortened.
        literals (callable, optional): What takes the literals. (default: they are counted)
        is_guess (bool): Whether the name of the file does not say what it is read as.

    Attributes:
        terms (set): Labels of terms that the file describes.
        obsolete (set): Labels of terms that are left out with their facts and literals.
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
        """The label of an IRI."""
        label = self._names.get(iri)
        if label is None:
            label = self._names[iri] = self._shorten(iri)
        return label

    def intern(self, label: str) -> str:
        """The same label as one object."""
        return self._names.setdefault(label, label)

    def add(self, head: str, relation: str, tail: str, place: int) -> None:
        """A fact, of labels, and its line or number."""
        self._labels += (head, relation, tail)
        self._places.append(place)

    def add_literal(self, entity: str, name: str, value: str) -> None:
        """A literal of an entity."""
        if self._sink is None:
            self.left_out["literals"] += 1
        else:
            self._literals.append((entity, name, value))

    def add_alternative(self, label: str, term: str) -> None:
        """Another label of a term, which means the term unless it is one itself, or one of two."""
        self._meanings.setdefault(label, set()).add(term)

    def rows(self, word: str) -> LocatedRows:
        """The facts with their places, of alternative labels with their terms, without those of
        obsolete terms; passes the literals on, and warns of what is left out.

        Args:
            word: What the numbers of places count.
        """
        triples: LabelTriples = np.empty(len(self._labels), dtype=object)
        triples[:] = self._labels
        triples, places = triples.reshape(-1, 3), self._places
        aliases = self._aliases()
        if self.obsolete:
            # A term that was replaced is obsolete itself, but may be the tail of another's fact.
            kept = [
                row
                for row, (head, _, tail) in enumerate(triples.tolist())
                if head not in self.obsolete and (tail not in self.obsolete or tail in aliases)
            ]
            self.left_out["facts of obsolete terms"] += len(triples) - len(kept)
            triples, places = triples[kept], [places[row] for row in kept]
        triples, count = follow_aliases(triples, aliases)
        if count:
            self.notes.append(f"alternative ids read as their terms ({count:,})")
        self._pass_literals(aliases)
        self._note_other_terms(triples)
        notes = [f"{self.source}: read as {self.kind}", *self.notes]
        if lost := [f"{what} ({count:,})" for what, count in self.left_out.items() if count]:
            notes.append(f"left out: {', '.join(lost)}")
        if len(notes) > 1 or self.is_guess:
            warnings.warn("; ".join(notes), stacklevel=5)
        numbers: Sequence[int] = places
        return LocatedRows(triples, ((f"{self.source}, {word}", numbers),), aliases)

    def _aliases(self) -> dict[str, str]:
        """The terms of the labels that mean one other term each."""
        own = self.terms - self.obsolete
        known = {
            label: next(iter(terms))
            for label, terms in self._meanings.items()
            if len(terms) == 1 and label not in own
        }
        if count := len(self._meanings) - len(known):
            text = "alternative ids of several terms, or that are terms themselves, not followed"
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
        """Notes IRIs of ontologies that OBO and tables would write as other labels."""
        found: dict[str, str] = {}
        for label in self._names.values():
            if label.startswith("obo:") and (match := _OTHER_TERM.fullmatch(label)):
                found.setdefault(match[1], f"{label!r} is '{match[1]}:{match[2]}'")
        if found and len(triples):
            name, example = next(iter(found.items()))
            line = json.dumps({name: f"{COMMON['obo']}{name}_"})
            self.notes.append(
                f"prefixes that the table lacks, so that OBO files have other labels: "
                f"{', '.join(sorted(found)[:5])} ({example} there); --prefixes FILE with {line} "
                "makes them the same"
            )


def follow_aliases(triples: LabelTriples, aliases: Mapping[str, str]) -> tuple[LabelTriples, int]:
    """Triples with the terms that labels mean, and how many labels were others."""
    if not aliases:
        return triples, 0
    labels = triples.ravel().tolist()
    places = [place for place, label in enumerate(labels) if label in aliases]
    if places:
        triples = triples.copy()
        flat = triples.reshape(-1)
        flat[places] = [aliases[labels[place]] for place in places]
    return triples, len(places)
