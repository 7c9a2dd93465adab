"""Label triples from whatever a user has them in."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sheafprop.data import as_label_triples, read_triples
from sheafprop.data.triples import LabelTriples
from sheafprop.errors import DataError

_COLUMNS = ["head", "relation", "tail"]

TripleInput = str | os.PathLike[str] | Iterable[Sequence[str]] | Any


def label_triples(triples: TripleInput) -> LabelTriples:
    """Label triples ``[m, 3]`` from a file, rows of three strings, or a pandas frame.

    Args:
        triples: The path of a file (``.csv``: comma-separated, ``.parquet``, else tab-separated),
            a sequence of ``(head, relation, tail)``, or a frame with columns of these names or
            with three columns.

    Raises:
        DataError: If a triple is malformed, or there is none.
    """
    if isinstance(triples, str | os.PathLike):
        array = triples_of_file(triples)
    elif hasattr(triples, "columns") and hasattr(triples, "to_numpy"):
        array = as_label_triples(_columns(triples, "the frame"), "the frame")
    else:
        try:
            array = as_label_triples(triples)
        except TypeError as error:
            raise DataError(
                "triples must be a path, rows of three strings or a pandas frame (got "
                f"{type(triples).__name__})"
            ) from error
    if len(array) == 0:
        raise DataError("there is no triple")
    return array


def triples_of_file(
    path: str | os.PathLike[str],
    *,
    columns: tuple[int, int, int] | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    allow_empty: bool = False,
) -> LabelTriples:
    """Label triples of a file whose name tells its kind: ``.parquet``, ``.csv``, else TSV.

    Args:
        path: The file.
        columns, header, allow_empty: See :func:`~sheafprop.data.read_triples`; Parquet files have
            names and no header.
        delimiter: Of the fields. (default: the tab, in ``.csv`` a comma)

    Raises:
        DataError: If a triple is malformed.
    """
    path = Path(path).expanduser()
    kind = path.suffix.lower()
    if kind != ".parquet":
        return read_triples(
            path,
            columns=columns,
            header=header,
            delimiter=delimiter or ("," if kind == ".csv" else "\t"),
            allow_empty=allow_empty,
        )
    import pandas as pd

    if not path.is_file():
        reason = "it is a folder" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: cannot be read ({reason})")
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from error
    if columns is not None:
        if max(columns) >= frame.shape[1]:
            raise DataError(f"{path} has {frame.shape[1]} columns (got 'columns' {columns})")
        frame = frame.iloc[:, list(columns)].set_axis(_COLUMNS, axis=1)
    triples = as_label_triples(_columns(frame, str(path)), str(path))
    if len(triples) == 0 and not allow_empty:
        raise DataError(f"{path}: the file holds no triple")
    return triples


def _columns(frame: Any, source: str) -> np.ndarray:
    names = [str(name) for name in frame.columns]
    if set(_COLUMNS) <= set(names):
        return frame[_COLUMNS].to_numpy(dtype=object)
    if len(names) != 3:
        raise DataError(
            f"{source} needs the columns head, relation and tail, or three columns (got "
            f"{', '.join(names[:8])}). Rename them, or keep three, such as by --columns 0,1,2"
        )
    return frame.to_numpy(dtype=object)
