"""The messages of triples in the files of a folder."""

import numpy as np
import torch

from sheafprop.kernels.fact_csr import FactCSR, Rows
from sheafprop.pretrained.mapped.array_folder import ArrayFolder

_PARTS = ("free", "known", "ends", "loops")
_COLUMNS = ("start", "src", "label", "weight")


def save_rows(folder: ArrayFolder, rows: FactCSR) -> None:
    """Keeps the arrays of messages that were made in a folder, under the names that they have
    there."""
    found: dict[str, np.ndarray | None] = {"total": rows.total.numpy()}
    for part in _PARTS:
        of = getattr(rows, part)
        for column in _COLUMNS:
            tensor = None if of is None else getattr(of, column)
            found[f"{part}.{column}"] = None if tensor is None else tensor.numpy()
    folder.finish(found)


def load_rows(folder: ArrayFolder, num_free: int, num_known: int, num_relations: int) -> FactCSR:
    """Messages that :func:`save_rows` kept, mapped.

    Raises:
        FormatError: If a file was cut; the folder counts as unfinished then.
    """
    tensors = {name: torch.from_numpy(array) for name, array in folder.open().items()}
    parts = {
        part: Rows(*(tensors.get(f"{part}.{column}") for column in _COLUMNS))  # type: ignore[arg-type]
        if f"{part}.start" in tensors
        else None
        for part in _PARTS
    }
    return FactCSR(num_free, num_known, num_relations, **parts, total=tensors["total"])  # type: ignore[arg-type]
