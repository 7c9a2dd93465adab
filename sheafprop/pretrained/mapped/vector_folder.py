"""The vectors of new entities as a folder of plain files.

================== =============================================================================
``vectors.npy``    the vectors ``[n, s, d]``, real or complex: ``numpy.load(..., mmap_mode="r")``
``entities.jsonl`` one ``{"label": ..., "origin": ...}`` per entity, as in a model folder
``manifest.json``  settings, section weights, counts; size and CRC-32 of the other files
================== =============================================================================
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.errors import DivergenceError
from sheafprop.files import check_folder_target, json_lines, new_folder, storage_errors, write_json
from sheafprop.kernels.backend import all_finite
from sheafprop.pretrained.mapped.job_record import checksum
from sheafprop.version import __version__

_VECTORS, _ENTITIES, _MANIFEST = "vectors.npy", "entities.jsonl", "manifest.json"


def check_vector_target(folder: Path, overwrite: bool) -> None:
    """Refuses a place where no vectors can be written.

    Raises:
        ValueError: If something is there that must stay.
    """
    check_folder_target(
        folder, overwrite, names=(_VECTORS, _ENTITIES), record=_MANIFEST, what="a folder of vectors"
    )


def write_vector_folder(
    folder: Path,
    pieces: Iterable[tuple[Tensor, list[str], np.ndarray]],
    *,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    about: dict[str, Any],
    overwrite: bool = False,
    work: Path | None = None,
) -> None:
    """Writes vectors piece by piece: the folder is complete or not there.

    Args:
        folder (Path): The folder.
        pieces: Vectors ``[m, s, d]``, labels, and whether a known entity is reached, in order.
        shape, dtype: Of all vectors.
        about (dict): What else the manifest is to hold.
        overwrite (bool): Whether a folder of vectors that is there is replaced.
        work (Path, optional): A folder beside it, in which a killed process leaves what it had
            written. (default: the folder that both are in)

    Raises:
        DivergenceError: If a vector is not finite; names the entity.
        StorageError: If the disk is full.
    """
    check_vector_target(folder, overwrite)
    header = {
        "descr": np.lib.format.dtype_to_descr(torch.empty(0, dtype=dtype).numpy().dtype),
        "fortran_order": False,
        "shape": shape,
    }
    with (
        storage_errors(folder, "written"),
        new_folder(folder, replace=overwrite, work=work) as temporary,
    ):
        with (
            open(temporary / _VECTORS, "xb") as vectors,
            open(temporary / _ENTITIES, "xb") as entities,
        ):
            np.lib.format.write_array_header_2_0(vectors, header)
            for x, labels, reached in pieces:
                _check_finite(x, labels)
                vectors.write(x.contiguous().numpy().data)
                origins = ("extended" if found else "unanchored" for found in reached.tolist())
                rows = zip(labels, origins, strict=True)
                entities.write(json_lines({"label": a, "origin": b} for a, b in rows))
            for file in (vectors, entities):
                file.flush()
                os.fsync(file.fileno())
        files = {name: _describe(temporary / name) for name in (_VECTORS, _ENTITIES)}
        library = f"sheafprop {__version__}"
        write_json(temporary / _MANIFEST, {"library": library, "files": files, **about})


def _check_finite(x: Tensor, labels: list[str]) -> None:
    if not all_finite(x):
        row = int((~torch.isfinite(x).flatten(1).all(1)).nonzero()[0])
        raise DivergenceError(f"the vector of {labels[row]!r} is not finite")


def _describe(path: Path) -> dict[str, int]:
    return {"size": path.stat().st_size, "crc32": checksum(path)}
