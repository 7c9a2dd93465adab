"""Tables of other engines as models of our own, a block of rows at a time."""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import count_noun
from sheafprop.data import Vocabulary, as_label_triples
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import FormatError
from sheafprop.files import storage_errors
from sheafprop.pretrained.importers.arrays import import_arrays
from sheafprop.pretrained.importers.id_files import require_file
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.pretrained.triple_input import triple_ids

#: Bytes of a block of rows.
BLOCK_BYTES = 2**26

Facts = LocatedRows | Iterable[Sequence[str]]
#: The numbers of rows, int64 ``[n]``, and the rows ``[n, m]``.
Block = tuple[np.ndarray, np.ndarray]


def import_table(
    model: str,
    *,
    entities: Sequence[str],
    relations: Sequence[str],
    blocks: Iterable[Block],
    width: int,
    parameters: Mapping[str, Tensor],
    facts: Facts | None = None,
    keep_unused: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    **options: Any,
) -> StoredModel:
    """Makes a model whose table is copied block by block into a file, and mapped from there.

    The file has no name and is gone with the model. Entities that no fact names are never copied.

    Args:
        model (str): The name of the model.
        entities, relations (sequence of str): The labels.
        blocks (iterable): Numbers of rows and rows, every row once.
        width (int): Columns of a row.
        parameters (mapping): The relation parameters.
        facts (iterable, optional): The training triples as labels.
        keep_unused (bool): Whether entities that no fact names are kept too.
        scratch (path, optional): Where the file lies. (default: the folder for temporary files)
        **options: As of :func:`import_arrays`.

    Raises:
        FormatError: If a row is missing.
        StorageError: If the file cannot be written.
    """
    kept, ids, given = None, None, () if facts is None else facts
    if not isinstance(given, LocatedRows):
        given = LocatedRows.number(as_label_triples(given, "the facts"))
    names: Sequence[str] = entities
    if len(given):
        vocabulary = Vocabulary(entities, kind="entities")
        ids = triple_ids(given, vocabulary, Vocabulary(relations, kind="relations"))
        if not keep_unused:
            used, ends = torch.unique(ids[:, [0, 2]], return_inverse=True)
            if len(used) < len(entities):
                kept, names = used.numpy(), vocabulary.labels_of(used)
                ids = torch.stack([ends[:, 0], ids[:, 1], ends[:, 1]], dim=1)
    notes = list(options.pop("notes", ()))
    if kept is not None:
        notes.append(
            f"{len(entities) - len(kept)} of the {len(entities)} entities occur in no fact, so "
            "they were never trained and are left out (keep_unused keeps them)"
        )
    table = _copy(blocks, len(entities), width, kept, model == "rotate", scratch)
    return import_arrays(
        model,
        entities=names,
        relations=relations,
        vectors=table,
        parameters=parameters,
        fact_ids=ids,
        keep_unused=True,
        notes=notes,
        layout="pairs" if model == "rotate" else None,
        **options,
    )


def _copy(
    blocks: Iterable[Block],
    count: int,
    width: int,
    kept: np.ndarray | None,
    halves: bool,
    scratch: str | os.PathLike[str] | None,
) -> Tensor:
    """The rows that are kept, in a file that is mapped."""
    folder = tempfile.gettempdir() if scratch is None else scratch
    size = count if kept is None else len(kept)
    place = np.arange(count) if kept is None else np.full(count, -1)
    if kept is not None:
        place[kept] = np.arange(size)
    seen = np.zeros(count, dtype=bool)
    with storage_errors(folder, "written"):
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (mapped for as long as the tensor)
        # Its blocks on the disk are taken now: a full disk would otherwise kill the process later.
        os.posix_fallocate(file.fileno(), 0, max(1, 4 * size * width))
        table = np.memmap(file, dtype=np.float32, mode="r+", shape=(size, width))
        file.close()
    for numbers, rows in blocks:
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
            raise FormatError(
                f"there are rows for entities {int(numbers.min())} to {int(numbers.max())}, and "
                f"labels for 0 to {count - 1}"
            )
        seen[numbers] = True
        wanted = place[numbers] >= 0
        rows = rows[wanted]
        if halves:
            rows = rows.reshape(len(rows), 2, -1).swapaxes(1, 2).reshape(len(rows), -1)
        table[place[numbers[wanted]]] = rows
    if not seen.all():
        missing = int((~seen).sum())
        raise FormatError(
            f"{count_noun(missing, 'entity')} of {count:,} have no row in the table, such as "
            f"number {int(seen.argmin())}"
        )
    return torch.from_numpy(table)


def row_blocks(rows: Any, first: int = 0) -> Iterator[Block]:
    """Blocks of an array on a disk, such as a mapped one or a dataset of HDF5."""
    count, width = rows.shape
    step = max(1, BLOCK_BYTES // max(1, width * 4))
    for begin in range(0, count, step):
        block = np.asarray(rows[begin : begin + step], dtype=np.float32)
        yield np.arange(first + begin, first + begin + len(block)), block


def read_json(path: Path, kind: Callable[[Any], bool], what: str, advice: str) -> Any:
    """The value of a JSON file.

    Raises:
        FormatError: If the file is missing, is not JSON or holds something else.
        StorageError: If it cannot be read.
    """
    require_file(path, f"it should hold {what}. {advice[0].upper()}{advice[1:]}")
    with storage_errors(path, "read"):
        data = path.read_bytes()
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"'{path}' is not JSON ({error}): {advice}") from error
    if not kind(value):
        raise FormatError(f"'{path}' does not hold {what}: {advice}")
    return value


def is_object(value: Any) -> bool:
    """Whether a value of JSON is an object."""
    return isinstance(value, dict)


def is_label_list(value: Any) -> bool:
    """Whether a value of JSON is a list of strings."""
    return isinstance(value, list) and all(isinstance(label, str) for label in value)


def check_shape(path: Path, array: Any, shape: tuple[int | None, ...], what: str) -> None:
    """Raises a :class:`FormatError` if an array has another shape; None stands for any number."""
    found = tuple(array.shape)
    fits = len(found) == len(shape) and all(
        b in (None, a) for a, b in zip(found, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise FormatError(f"'{path}' should be {what}, [{wanted}] (got {list(found)})")
