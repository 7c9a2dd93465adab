import os
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sheafprop.data.datasets.query_data import COLUMNS, GRAPHS, QueryData
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError

Members = dict[str, NDArray]


def read_compact_queries(path: str | os.PathLike[str]) -> QueryData:
    r"""Reads an inductive query data set from one compressed NumPy archive.

    The archive holds ``counts`` (entities, relations with inverse ones, training entities, new
    validation entities, new test entities), ``entity_label``, ``relation_label``, the five graphs
    as forward triples, and the queries as ``valid_<type>`` and ``test_<type>``. Answers follow from
    the graphs, see :class:`~sheafprop.query.GraphExecutor`. No member is a pickle.

    Raises:
        DataError: If the file cannot be read, or a member is missing or does not fit.
    """
    source = os.fspath(path)
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with archive:
            members = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{source}: not a readable NumPy archive ({error})") from error
    wanted = ["counts", "entity_label", "relation_label", *GRAPHS]
    missing = [name for name in wanted if name not in members]
    if missing:
        raise DataError(f"{source}: the archive lacks {', '.join(missing)}")
    counts = _integers(members, "counts", source, 1).tolist()
    entities, relations = (_labels(members, f"{k}_label", source) for k in ("entity", "relation"))
    parts = counts[2:]
    if len(parts) != 3 or sum(parts) != counts[0] or counts[1] != 2 * len(relations):
        raise DataError(
            f"{source}: 'counts' does not fit (got {counts} for "
            f"{len(entities)} entities and {len(relations)} relations)"
        )
    queries = {
        split: {
            kind: _integers(members, f"{split}_{kind}", source, 2)
            for kind in COLUMNS
            if f"{split}_{kind}" in members
        }
        for split in ("valid", "test")
    }
    return QueryData(
        Path(path).stem,
        Vocabulary(entities, kind="entities"),
        Vocabulary(relations, kind="relations"),
        (parts[0], parts[1], parts[2]),
        {name: torch.from_numpy(_integers(members, name, source, 2)) for name in GRAPHS},
        queries,
    )


def _integers(members: Members, name: str, source: str, dimensions: int) -> NDArray[np.int64]:
    values = members[name]
    if values.dtype.kind not in "iu" or values.ndim != dimensions:
        raise DataError(
            f"{source}: '{name}' must hold integers in {dimensions} dimensions (got {values.dtype} "
            f"of shape {list(values.shape)})"
        )
    return values.astype(np.int64)


def _labels(members: Members, name: str, source: str) -> list[str]:
    values = members[name]
    if values.dtype.kind != "S" or values.ndim != 1:
        raise DataError(
            f"{source}: '{name}' must hold labels as bytes (got {values.dtype} of shape "
            f"{list(values.shape)})"
        )
    try:
        return [label.decode("utf-8") for label in values.tolist()]
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: '{name}' is not UTF-8 ({error})") from error
