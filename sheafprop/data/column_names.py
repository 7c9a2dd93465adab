"""Finds the columns of head, relation and tail, from the names in a header and from the labels."""

import re
import warnings
from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from sheafprop.errors import DataError

LabelTriples = NDArray[np.object_]

#: Pairs of names for head and tail, and the names of the relation used with them.
_NAMES = (
    ("head", "tail", ("relation", "rel", "predicate")),
    ("subject", "object", ("predicate", "relation", "rel")),
    ("source", "target", ("relation", "rel", "predicate")),
    ("h", "t", ("r",)),
    ("s", "o", ("p",)),
    # Names of the columns that APOC exports from Neo4j.
    ("_start", "_end", ("_type",)),
)
# Further words that identify a header if all three columns hold one; single letters do not.
_WORDS = {word for h, t, rels in _NAMES for word in (h, t, *rels) if len(word) > 1} | {
    *("from", "to", "edge", "type", "label", "property", "node1", "node2"),
    *("head_id", "relation_id", "tail_id", "start_id", "end_id", "source_id", "target_id"),
    *("subject_id", "predicate_id", "object_id", "edge_type", "metaedge", "interaction"),
}
# Number of rows in which labels are compared.
_LOOKED_AT = 100_000
_CHUNK = 4096
# Number of rows needed to compare the numbers of labels.
_FEW = 100
_INTEGER = re.compile(r"[+-]?[0-9]+")


def recognize_columns(names: Sequence[object]) -> tuple[int, int, int] | None:
    """Returns the columns of head, relation and tail by their usual names, if unambiguous."""
    folded = [_fold(name) for name in names]
    found = []
    for head, tail, relations in _NAMES:
        present = [name for name in relations if name in folded]
        if head in folded and tail in folded and present:
            found.append((head, present[0], tail))
    if len(found) != 1 or any(folded.count(name) != 1 for name in found[0]):
        return None
    places = [folded.index(name) for name in found[0]]
    return places[0], places[1], places[2]


def columns_by_name(
    wanted: Sequence[int | str], names: Sequence[object], source: str
) -> tuple[int, int, int]:
    """Returns the numbers of columns that were given by number or by name.

    Raises:
        DataError: If a column does not exist, or a name is ambiguous.
    """
    texts = [str(name).strip() for name in names]
    out = []
    for column in wanted:
        if isinstance(column, int):
            number = column
        else:
            places = [i for i, text in enumerate(texts) if text == column]
            places = places or [i for i, text in enumerate(texts) if _fold(text) == _fold(column)]
            if len(places) != 1:
                problem = "does not exist" if not places else "exists more than once"
                raise DataError(
                    f"{source}: the column {column!r} {problem}. The columns are "
                    f"{', '.join(map(repr, texts[:20]))}"
                )
            number = places[0]
        if number >= len(texts):
            raise DataError(
                f"{source} has {len(texts)} columns (got 'columns' {','.join(map(str, wanted))})"
            )
        out.append(number)
    if len(set(out)) != 3:
        raise DataError(f"{source}: 'columns' must be different columns (got {tuple(wanted)})")
    return out[0], out[1], out[2]


def is_column_name(field: str) -> bool:
    """Whether a field is a usual name of a column."""
    return _fold(field) in _WORDS


def check_first_line(
    triples: LabelTriples, line: int, source: str, known: Container[str] = ()
) -> None:
    """Checks that the first row is not a header.

    The first row looks like a header if its labels are usual names of columns, or occur neither in
    another row of ``triples`` nor in ``known``. If the same holds for the second row, as in a few
    unrelated facts, this is only a warning.

    Raises:
        DataError: If the first row looks like a header.
    """
    first = triples[0].tolist()
    is_words = all(map(is_column_name, first))
    if not is_words and not is_lone(triples, 0, known):
        return
    seen = "looks like column names" if is_words else "occurs nowhere else"
    text = (
        f"{source}, line {line}: this row {seen}, so it may be a header (got "
        f"{show_fields(first)}). Give header=True (--header yes) to skip the line, header=False "
        "(--header no) to read it as a triple, or the names of the columns of head, relation and "
        "tail (--columns NAME,NAME,NAME)"
    )
    if is_words or (len(triples) > 1 and not is_lone(triples, 1, known)):
        raise DataError(text)
    if len(triples) > 1:
        warnings.warn(text, stacklevel=2)


def is_lone(triples: LabelTriples, row: int, known: Container[str] = ()) -> bool:
    """Whether the labels of a row occur neither in ``known`` nor in another row."""
    labels = set(triples[row].tolist())
    others = (triples[:row], triples[row + 1 :])
    return not any(label in known for label in labels) and not any(
        occur(labels, part) for part in others
    )


def occur(labels: set[str], triples: LabelTriples) -> bool:
    """Whether any of the labels occurs in the triples."""
    for start in range(0, len(triples), _CHUNK):
        part = triples[start : start + _CHUNK]
        # Relations first: they repeat most often.
        if any(not labels.isdisjoint(part[:, column].tolist()) for column in (1, 0, 2)):
            return True
    return False


def check_order(triples: LabelTriples, source: str) -> None:
    """Checks that the relation column does not look like a column of entities.

    It does if most relation labels also occur as head or tail. A tenth of them suffices if another
    column has fewer distinct labels and shares none with the others, as a relation column does.

    Integers are ambiguous, since entities and relations are often numbered separately. For them,
    more relations than heads or tails cause a warning.

    Raises:
        DataError: If the relations look like entities, based on at least two labels.
    """
    columns = [triples[:_LOOKED_AT, column].tolist() for column in range(3)]
    head, relation, tail = map(set, columns)
    names = {label for label in relation if not _INTEGER.fullmatch(label)}
    shared = {label for label in names if label in head or label in tail}
    order, overlap, count = _best_order(head, relation, tail)
    part = 0.1 if not overlap and count < len(names) else 0.5
    if len(shared) >= 2 and len(shared) > part * len(names):
        example = next(label for label in columns[1] if label in shared)
        raise DataError(
            f"{source}: {len(shared)} of the {len(names)} relation labels also occur as head or "
            f"tail (first: {example!r}), so the columns may be in another order. Give 'columns' "
            f"(--columns {order} for the order that fits best, or --columns 0,1,2 if they are in "
            "this order)"
        )
    if names or len(relation) <= min(len(head), len(tail)) or len(columns[0]) < _FEW:
        return
    warnings.warn(
        f"{source}: there are more relations ({len(relation)}) than heads ({len(head)}) or tails "
        f"({len(tail)}). If the columns are in another order, give 'columns' (--columns "
        f"{order}); if it is right, give --columns 0,1,2",
        stacklevel=2,
    )


def _best_order(head: set[str], relation: set[str], tail: set[str]) -> tuple[str, float, int]:
    """Returns the other order in which relations share the fewest labels with heads and tails.

    Returns:
        The order, the fraction of its relations that are heads or tails, and their number.
    """
    orders = {"1,0,2": (head, relation, tail), "0,2,1": (tail, head, relation)}
    found = []
    for order, (middle, first, last) in orders.items():
        shared = sum(label in first or label in last for label in middle)
        found.append((shared / len(middle), len(middle), order))
    overlap, count, order = min(found)
    return order, overlap, count


def show_fields(fields: Sequence[str]) -> str:
    """Returns the first fields of a row for a message, truncated."""
    text = ", ".join(repr(field) for field in fields[:3]) + (", ..." if len(fields) > 3 else "")
    return text if len(text) <= 80 else text[:77] + "..."


def _fold(name: object) -> str:
    return str(name).strip().lstrip("#").strip().casefold()
