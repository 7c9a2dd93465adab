import errno
import os
import shutil
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from sheafprop.errors import FormatError
from sheafprop.files import storage_errors, write_json
from sheafprop.kernels.fact_csr import FactCSR, Rows
from sheafprop.pretrained.mapped.job_record import read_record

_RECORD = "arrays.json"
_PIECE = 2**22


class ArrayFolder:
    """Arrays of one dimension in the files of a folder, mapped into memory.

    A record that is written last says what they hold: a folder without one is not finished.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path):
        self.path = path

    def clear(self) -> Self:
        """Removes what an interrupted process left, and makes the folder."""
        with storage_errors(self.path, "written"):
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True)
        return self

    def make(self, name: str, size: int, dtype: Any) -> NDArray:
        """A new array, whose place on the disk is taken now: a disk that is full later would end
        the process at a write to memory.

        Raises:
            StorageError: If the disk is full.
        """
        path = self.path / f"{name}.bin"
        num_bytes = size * np.dtype(dtype).itemsize
        with storage_errors(path, "written"), open(path, "wb") as file:
            reserve(file.fileno(), num_bytes)
        return _mapped(path, size, dtype, "r+")

    def finish(self, arrays: dict[str, NDArray | None], **facts: Any) -> None:
        """Keeps some arrays, cut to what is given of them, and describes them.

        Args:
            arrays: Beginnings of arrays that were made here, by their name; None is left out.
            **facts: What else the record is to hold, as plain values.
        """
        kept = {name: array for name, array in arrays.items() if array is not None}
        described = {
            name: {"size": len(array), "dtype": array.dtype.name} for name, array in kept.items()
        }
        with storage_errors(self.path, "written"):
            for path in self.path.glob("*.bin"):
                if path.stem not in kept:
                    path.unlink()
                    continue
                with open(path, "r+b") as file:
                    file.truncate(kept[path.stem].nbytes)
                    os.fsync(file.fileno())
        write_json(self.path / _RECORD, {"arrays": described, **facts})

    def facts(self) -> dict[str, Any] | None:
        """What the record holds beside the arrays; None for a folder that is not finished."""
        return read_record(self.path / _RECORD)

    def open(self) -> dict[str, NDArray]:
        """The arrays by name, mapped; writing to one changes no file.

        Raises:
            FormatError: If a file is missing or was cut; the folder counts as unfinished then.
        """
        record = read_record(self.path / _RECORD) or {"arrays": {}}
        found = {}
        for name, of in record["arrays"].items():
            path = self.path / f"{name}.bin"
            try:
                check_size(path, of["size"] * np.dtype(of["dtype"]).itemsize)
            except FormatError:
                (self.path / _RECORD).unlink()
                raise
            found[name] = _mapped(path, of["size"], of["dtype"], "c")
        return found


def check_size(path: Path, num_bytes: int) -> None:
    """Raises :class:`FormatError` for a file that is missing or of another size."""
    found = path.stat().st_size if path.is_file() else None
    if found != num_bytes:
        what = "is missing" if found is None else f"should have {num_bytes} bytes (got {found})"
        raise FormatError(f"'{path}' {what}: it is made again by the same command")


def reserve(handle: int, num_bytes: int) -> None:
    """Takes space on the disk for a new file.

    Raises:
        OSError: If the disk is full.
    """
    try:
        if num_bytes:
            os.posix_fallocate(handle, 0, num_bytes)
        return
    except AttributeError:
        pass  # not on this system
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    zeros = bytes(min(num_bytes, _PIECE))
    for start in range(0, num_bytes, _PIECE):
        os.pwrite(handle, zeros[: num_bytes - start], start)


def _mapped(path: Path, size: int, dtype: Any, mode: Any) -> NDArray:
    if size == 0:
        return np.empty(0, dtype)
    # A plain array in the same memory, as compiled loops and torch know it.
    return np.asarray(np.memmap(path, dtype=dtype, mode=mode, shape=(size,)))


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
