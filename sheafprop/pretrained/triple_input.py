"""Label triples from whatever a user has them in."""

import os
import warnings
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import count_noun
from sheafprop.data import Vocabulary, as_label_triples
from sheafprop.data.label_checks import advise_on_order, describe_exchanged
from sheafprop.data.text_rows import LocatedRows
from sheafprop.data.triples import LabelTriples, frame_cells, is_frame, read_located
from sheafprop.errors import DataError
from sheafprop.pretrained.entity_index import EntityIndex

if TYPE_CHECKING:
    import pandas as pd

TripleInput = str | os.PathLike[str] | Iterable[Sequence[Any]] | Any


def label_triples(
    triples: TripleInput, known: Container[str] = (), *, may_lack: bool = False
) -> LocatedRows:
    """Label triples ``[m, 3]`` from a file, rows of three labels, or a frame, with their places.

    Args:
        triples: The path of a file (see :func:`~sheafprop.data.read_triples`), a sequence of
            ``(head, relation, tail)``, or a frame of pandas or polars with columns of usual names,
            such as these, or with three columns. Integers are taken as their decimal text.
        known: Labels that are known from elsewhere: a first line of a file with one of them is no
            header.
        may_lack: Whether there may be none.

    Raises:
        DataError: If a triple is malformed, or there is none.
    """
    if isinstance(triples, LocatedRows):
        rows = triples
    elif isinstance(triples, str | os.PathLike):
        rows = read_located(triples, known=known)
    else:
        try:
            source = "the frame" if is_frame(triples) else "triples"
            rows = LocatedRows.number(as_label_triples(triples, source))
        except TypeError as error:
            raise DataError(
                "triples must be a path, rows of three labels or a frame of pandas or polars (got "
                f"{type(triples).__name__})"
            ) from error
    if len(rows) == 0 and not may_lack:
        raise DataError("there is no triple")
    return rows


def lookup_triples(
    labels: LabelTriples, entities: Vocabulary | EntityIndex, relations: Vocabulary
) -> Tensor:
    """Ids ``[m, 3]`` of label triples ``[m, 3]``, -1 for unknown labels."""
    head, tail = entities.lookup(labels[:, [0, 2]].ravel()).view(-1, 2).unbind(1)
    return torch.stack([head, relations.lookup(labels[:, 1]), tail], dim=1)


def triple_ids(
    triples: LocatedRows,
    entities: Vocabulary | EntityIndex,
    relations: Vocabulary,
    skip_unknown: bool | None = None,
) -> Tensor:
    """Ids ``[m, 3]`` of label triples.

    Args:
        triples: The triples.
        entities: The known entities.
        relations: The known relations.
        skip_unknown: Whether triples with an unknown label are left out with a warning that counts
            them, where the caller has that choice.

    Raises:
        DataError: If a label is unknown; names the first ones with the nearest spelling, the places
            of their triples, and the order of columns that fits better. Or if no triple is left.
    """
    labels = triples.rows
    ids = lookup_triples(labels, entities, relations)
    lost = (ids < 0).any(1).nonzero().flatten().tolist()
    if lost and skip_unknown:
        if len(lost) == len(ids):
            hint = advise_on_order(labels, entities, relations)
            text = "no triple is left: every one has an unknown label"
            raise DataError(text + (hint and f". {hint}"))
        warnings.warn(
            f"skipped {count_noun(len(lost), 'triple')} of {len(ids):,} with an unknown label "
            f"({triples.places(lost)})",
            stacklevel=4,
        )
        return ids[(ids >= 0).all(1)]
    if lost:
        try:
            entities.ids(labels[:, [0, 2]].ravel())
            relations.ids(labels[:, 1])
        except DataError as error:
            skip = "Skip them with skip_unknown=True (--skip-unknown)"
            hint = describe_exchanged(triples, lost, relations) + advise_on_order(
                labels, entities, relations, "" if skip_unknown is None else skip
            )
            raise DataError(
                f"{error}; {len(lost):,} of {count_noun(len(labels), 'triple')} affected "
                f"({triples.places(lost)})" + (hint and f". {hint.strip()}")
            ) from error
    return ids


def labels_as_given(triples: TripleInput) -> tuple[list[Any], list[Any]]:
    """The entities and relations of rows or a frame as they came; none of a file, which has text.

    Rows must not be an iterator, which could be read once only.
    """
    if isinstance(triples, str | os.PathLike | LocatedRows):
        return [], []
    cells = (
        frame_cells(triples, "the frame")[0]
        if is_frame(triples)
        else np.asarray(triples, dtype=object)
    )
    return cells[:, [0, 2]].ravel().tolist(), cells[:, 1].tolist()


def restore_integers(
    frame: "pd.DataFrame", entities: Iterable[Any], relations: Iterable[Any]
) -> "pd.DataFrame":
    """Gives labels back as integers where all that were given are integers.

    Args:
        frame: Results with columns ``head``, ``relation`` and ``tail``. A column becomes integers
            if all labels in it are the decimal texts of some.
        entities: Heads and tails as they came.
        relations: Relations as they came.
    """
    for given, names in ((list(entities), ("head", "tail")), (list(relations), ("relation",))):
        if not given or not all(isinstance(label, int | np.integer) for label in given):
            continue
        for name in names:
            if all(map(_is_integer, frame[name])):
                frame[name] = [int(label) for label in frame[name]]
    return frame


def _is_integer(label: str) -> bool:
    # Python refuses to convert more than 4300 digits.
    text = label.removeprefix("-")
    return text.isascii() and text.isdecimal() and len(text) < 4300 and str(int(label)) == label
