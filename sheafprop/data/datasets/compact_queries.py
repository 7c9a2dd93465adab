import os
import zipfile
from pathlib import Path

import numpy as np
import torch

from sheafprop.data.datasets.query_data import COLUMNS, GRAPHS, QueryData
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.errors import DataError


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
        with np.load(path, allow_pickle=False) as archive:
            members = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{source}: not a readable NumPy archive ({error})") from error
    wanted = ["counts", "entity_label", "relation_label", *GRAPHS]
    missing = [name for name in wanted if name not in members]
    if missing:
        raise DataError(f"{source}: the archive lacks {', '.join(missing)}")
    total, directed, *parts = members["counts"].tolist()
    relations = [label.decode("utf-8") for label in members["relation_label"]]
    if len(parts) != 3 or sum(parts) != total or directed != 2 * len(relations):
        raise DataError(
            f"{source}: 'counts' does not fit (got {members['counts'].tolist()} for "
            f"{len(members['entity_label'])} entities and {len(relations)} relations)"
        )
    queries = {
        split: {
            kind: members[f"{split}_{kind}"].astype(np.int64)
            for kind in COLUMNS
            if f"{split}_{kind}" in members
        }
        for split in ("valid", "test")
    }
    return QueryData(
        Path(path).stem,
        Vocabulary((v.decode("utf-8") for v in members["entity_label"]), kind="entities"),
        Vocabulary(relations, kind="relations"),
        (parts[0], parts[1], parts[2]),
        {name: torch.from_numpy(members[name].astype(np.int64)) for name in GRAPHS},
        queries,
    )
