"""Checks of the labels of a data set, before a graph is built."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from sheafprop.checks import agree, check_choice, count_noun, quote
from sheafprop.data.text_rows import LocatedRows
from sheafprop.data.triples import LabelTriples
from sheafprop.errors import DataError, UnknownRelationError

Mode = Literal["semi-inductive", "fully-inductive"]
MODES: tuple[Mode, ...] = ("semi-inductive", "fully-inductive")
EXAMPLES = 5
_NUMBER = re.compile(r"\+?(-?)0*([0-9]+)(?:\.([0-9]*))?")


def check_labels(
    name: str,
    mode: Mode,
    train: LabelTriples,
    parts: Mapping[str, LabelTriples],
    on_unknown_relation: Literal["error", "drop"],
) -> tuple[dict[str, LabelTriples], dict[str, Counter[str]]]:
    r"""Checks that a model trained on one set of label triples can be applied to the others.

    Args:
        name: The name of the data set, for error messages.
        mode: ``"semi-inductive"`` or ``"fully-inductive"``.
        train: The training triples.
        parts: The other sets, including ``"observed"``.
        on_unknown_relation: Whether triples with a relation that has no training triple are an
            error or are dropped.

    Returns:
        The sets without the triples of unknown relations, and the unknown relations of each set
        with their numbers of triples.

    Raises:
        DataError: If there is no training triple, no observed triple or no free entity, or no known
            entity in the semi-inductive mode.
        UnknownRelationError: If relations have no training triple. The message names them with
            their numbers of triples.
    """
    check_choice("mode", mode, MODES)
    check_choice("on_unknown_relation", on_unknown_relation, ("error", "drop"))
    if len(train) == 0:
        raise DataError(f"{name}: there is no training triple")
    relations = set(train[:, 1])
    kept, unknown = {}, {}
    for key, part in parts.items():
        known = np.fromiter((label in relations for label in part[:, 1]), bool, len(part))
        kept[key] = part[known]
        unknown[key] = Counter(part[~known, 1].tolist())
    total = sum(unknown.values(), Counter())
    if total and on_unknown_relation == "error":
        where = ", ".join(f"{key}: {sum(unknown[key].values())}" for key in parts if unknown[key])
        given = np.concatenate(list(parts.values()))
        advice = advise_on_order(
            given,
            set(train[:, [0, 2]].ravel()),
            relations,
            "Add training triples, or drop these triples with --data.on_unknown_relation=drop (in "
            "Python, on_unknown_relation='drop')",
        )
        raise UnknownRelationError(
            f"{name}: {count_noun(len(total), 'relation')} {agree(len(total), 'has', 'have')} no "
            f"training triple and thus no maps: {format_counts(total)}; triples affected: {where}. "
            f"{advice}"
        )
    observed = kept["observed"]
    if len(observed) == 0:
        raise DataError(f"{name}: there is no observed triple, so no entity can get a vector")
    if mode == "semi-inductive":
        known_entities, found = set(train[:, [0, 2]].ravel()), set(observed[:, [0, 2]].ravel())
        if found <= known_entities:
            raise DataError(
                f"{name}: no free entities: all {len(found)} entities of the observed triples are "
                "known from training. Give triples of new entities, or treat all of them as new "
                "with --data.mode=fully-inductive (in Python, mode='fully-inductive')"
            )
        if known_entities.isdisjoint(found):
            raise DataError(
                f"{name}: none of the {len(found)} entities of the observed triples is known from "
                "training, but the mode 'semi-inductive' needs known entities. "
                "Treat all of them as new with --data.mode=fully-inductive (in Python, "
                "mode='fully-inductive'), or check whether the labels are spelled differently"
            )
    return kept, unknown


def format_counts(counts: Counter[str]) -> str:
    """Formats the most frequent labels with their numbers of triples."""
    names = [
        f"{quote(label)}: {count_noun(count, 'triple')}"
        for label, count in counts.most_common(EXAMPLES)
    ]
    more = f" and {len(counts) - EXAMPLES} more" if len(counts) > EXAMPLES else ""
    return ", ".join(names) + more


def advise_on_order(
    triples: LabelTriples, entities: Container[str], relations: Container[str], otherwise: str = ""
) -> str:
    """Returns advice for unknown labels, which another order of the columns may explain.

    Args:
        triples: Label triples with the columns in the order in which they were read.
        entities: The known entities.
        relations: The known relations.
        otherwise: The advice if the order is right.

    Returns:
        The order if another column holds mostly known relations; both if most relations are
        unknown; else, or if all heads and tails are known entities, ``otherwise``.
    """
    columns = [set(triples[:, column].tolist()) for column in range(3)]
    known = [sum(label in relations for label in column) for column in columns]
    unknown = [label for label in columns[1] if label not in relations]
    if 2 * len(unknown) <= len(columns[1]):
        return otherwise
    for column, name, order in ((0, "first", "1,0,2"), (2, "third", "0,2,1")):
        if 2 * known[column] > len(columns[column]):
            return (
                f"The {name} column holds {count_noun(known[column], 'known relation')}: give "
                f"'columns' (--columns {order} for that order)"
            )
    how = "'columns' (--columns 1,0,2 where the relation comes first, 0,2,1 where it comes last)"
    if 2 * sum(label in entities for label in unknown) > len(unknown):
        return (
            "Most of the relations are known as entities, so the columns may be in another order: "
            f"give {how}"
        )
    if all(label in entities for label in columns[0] | columns[2]):
        return otherwise
    if isinstance(relations, Collection):
        folded = {fold(label) for label in relations}
        if all(fold(label) in folded for label in unknown):
            return (
                "The unknown relations differ from known ones only in case, white space, Unicode "
                f"form or hidden characters: correct them. {otherwise}".rstrip()
            )
    hint = f"If the columns are in another order, give {how}"
    return f"{hint}. Otherwise {otherwise[0].lower()}{otherwise[1:]}" if otherwise else hint


def describe_exchanged(triples: LocatedRows, rows: Sequence[int], relations: Container[str]) -> str:
    """Describes triples whose head or tail is a known relation, while their relation is unknown.

    Args:
        triples: Label triples with the columns in the order in which they were read.
        rows: Rows to check, such as those with an unknown label.
        relations: The known relations.

    Returns:
        A sentence followed by a space. It is empty if there is no such triple, or if most triples
        are such, see :func:`advise_on_order`.
    """
    found = []
    for row in rows:
        head, relation, tail = triples.rows[row]
        if relation not in relations and (head in relations or tail in relations):
            found.append((row, "first" if head in relations else "third"))
    if not found or 2 * len(found) > len(triples):
        return ""
    row, name = found[0]
    return (
        f"{triples.place(row)}: its {name} field is a known relation; are the fields exchanged"
        + (f", as in {len(found) - 1} more" if len(found) > 1 else "")
        + "? "
    )


def lookalikes(labels: Sequence[str], start: int = 0) -> dict[str, str]:
    """Returns labels from ``start`` on that resemble an earlier label, with that label.

    Such labels differ only in case, white space, Unicode form or invisible characters, or are the
    same decimal number, such as 007 and 7 or 1.0 and 1.
    """
    keys = {label: _fold_number(label) for label in labels[start:]}
    wanted, first = set(keys.values()), dict[str, str]()
    for label in labels:
        key = keys[label] if label in keys else _fold_number(label)
        if key in wanted:
            first.setdefault(key, label)
    near = {label: first[key] for label, key in keys.items()}
    return {label: earlier for label, earlier in near.items() if earlier != label}


def format_lookalikes(kind: str, near: Mapping[str, str]) -> str:
    """Formats the number of :func:`lookalikes` and the first ones."""
    pairs = [f"{quote(label)} and {quote(earlier)}" for label, earlier in near.items()]
    more = f" and {len(pairs) - EXAMPLES} more" if len(pairs) > EXAMPLES else ""
    equal = any(fold(label) != fold(earlier) for label, earlier in near.items())
    return (
        f"{kind} that differ from another only in case, white space, Unicode form or hidden "
        f"characters{', or are equal as numbers' if equal else ''}: {len(pairs)} "
        f"({', '.join(pairs[:EXAMPLES])}{more})"
    )


def fold(label: str) -> str:
    """Normalizes a label, so that labels that look alike become equal.

    Normalizes case, Unicode form (NFKC) and white space, and removes format characters (category
    Cf: zero-width spaces, soft hyphens, direction and byte order marks).
    """
    if label.isascii():
        return " ".join(label.casefold().split())
    text = unicodedata.normalize("NFKC", label).casefold()
    # Again, since folding the case may denormalize.
    text = unicodedata.normalize("NFKC", text)
    return " ".join("".join(c for c in text if unicodedata.category(c) != "Cf").split())


def _fold_number(label: str) -> str:
    """Normalizes a label by :func:`fold`, and a decimal number to its shortest form."""
    text = fold(label)
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    sign, whole, fraction = found.groups()
    fraction = (fraction or "").rstrip("0")
    return sign + whole + (f".{fraction}" if fraction else "")


def lookalike_notes(entities: Iterable[str], relations: Iterable[str]) -> list[str]:
    """Returns a note on the :func:`lookalikes` of each kind, if there are any."""
    kinds = {"entities": entities, "relations": relations}
    near = {kind: lookalikes(list(dict.fromkeys(labels))) for kind, labels in kinds.items()}
    return [
        f"{format_lookalikes(kind, pairs)}; labels are compared literally"
        for kind, pairs in near.items()
        if pairs
    ]
