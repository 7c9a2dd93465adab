"""Label triples from whatever a user has them in."""

import os
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.data import as_label_triples, read_triples
from sheafprop.data.triples import LabelTriples, frame_cells, frame_triples, is_frame
from sheafprop.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

TripleInput = str | os.PathLike[str] | Iterable[Sequence[Any]] | Any


def label_triples(triples: TripleInput, known: Container[str] = ()) -> LabelTriples:
    """Label triples ``[m, 3]`` from a file, rows of three labels, or a frame.

    Args:
        triples: The path of a file (see :func:`~sheafprop.data.read_triples`), a sequence of
            ``(head, relation, tail)``, or a frame of pandas or polars with columns of usual names,
            such as these, or with three columns. Integers are taken as their decimal text.
        known: Labels that are known from elsewhere: a first line of a file with one of them is no
            header.

    Raises:
        DataError: If a triple is malformed, or there is none.
    """
    if isinstance(triples, str | os.PathLike):
        array = read_triples(triples, known=known)
    elif is_frame(triples):
        array = frame_triples(triples, "the frame")
    else:
        try:
            array = as_label_triples(triples)
        except TypeError as error:
            raise DataError(
                "triples must be a path, rows of three labels or a frame of pandas or polars (got "
                f"{type(triples).__name__})"
            ) from error
    if len(array) == 0:
        raise DataError("there is no triple")
    return array


def triple_ids(
    labels: LabelTriples,
    entity_ids: Callable[[Iterable[str]], Tensor],
    relation_ids: Callable[[Iterable[str]], Tensor],
) -> Tensor:
    """Ids ``[m, 3]`` of label triples ``[m, 3]``, with the look-ups of entities and relations."""
    ends = entity_ids(labels[:, [0, 2]].ravel()).view(-1, 2)
    return torch.stack([ends[:, 0], relation_ids(labels[:, 1]), ends[:, 1]], dim=1)


def given_labels(triples: TripleInput) -> tuple[list[Any], list[Any]]:
    """The entities and relations of rows or a frame as they came; none of a file, which has text.

    Rows must not be an iterator, which could be read once only.
    """
    if isinstance(triples, str | os.PathLike):
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
