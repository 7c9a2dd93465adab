"""What a reader of a graph format finds: facts with their places, and what it leaves out."""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from sheafprop.data.column_names import LabelTriples
from sheafprop.data.formats.prefixes import Prefixes
from sheafprop.data.text_rows import LocatedRows

#: Takes the entity, the property and the value of a literal.
LiteralSink = Callable[[str, str, str], object]


class Facts:
    """Collects the facts of a file, its labels once each.

    Args:
        source (str): The file.
        kind (str): What it is read as.
        prefixes (Prefixes): How IRIs are shortened.
        literals (callable, optional): What takes the literals. (default: they are counted)
    """

    def __init__(
        self, source: str, kind: str, prefixes: Prefixes, literals: LiteralSink | None = None
    ):
        self.source, self.kind = source, kind
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []
        self.obsolete: set[str] = set()
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
        self.left_out["literals"] += 1
        if self._sink is not None:
            self._sink(entity, name, value)

    def rows(self, word: str) -> LocatedRows:
        """The facts with their places, without those of obsolete terms; warns of what is left out.

        Args:
            word: What the numbers of places count.
        """
        triples: LabelTriples = np.empty(len(self._labels), dtype=object)
        triples[:] = self._labels
        triples, places = triples.reshape(-1, 3), self._places
        if self.obsolete:
            kept = [
                row
                for row, (head, _, tail) in enumerate(triples.tolist())
                if head not in self.obsolete and tail not in self.obsolete
            ]
            self.left_out["facts of obsolete terms"] += len(triples) - len(kept)
            triples, places = triples[kept], [places[row] for row in kept]
        if self._sink is not None and self.left_out["literals"]:
            self.notes.append(f"literals written ({self.left_out.pop('literals'):,})")
        notes = [f"{self.source}: read as {self.kind}", *self.notes]
        if lost := [f"{what} ({count:,})" for what, count in self.left_out.items() if count]:
            notes.append(f"left out: {', '.join(lost)}")
        if len(notes) > 1:
            warnings.warn("; ".join(notes), stacklevel=5)
        numbers: Sequence[int] = places
        return LocatedRows(triples, ((f"{self.source}, {word}", numbers),))
