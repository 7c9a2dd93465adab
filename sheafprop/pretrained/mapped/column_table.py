"""A table of vectors in files of some columns each, which are read and written in order."""

import math
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.files import storage_errors, sync_folder
from sheafprop.kernels.memory import empty
from sheafprop.pretrained.mapped.array_folder import check_size, reserve

# Bytes that are written at once.
_PIECE = 2**24
# Columns that a loop takes at once on the widest vector registers.
_VECTOR = 16


class Block(NamedTuple):
    """Sections and columns of a block; several sections only with all columns."""

    sections: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Number of sections, and of columns."""
        (s0, s1), (c0, c1) = ((of.start, of.stop) for of in self)
        return s1 - s0, c1 - c0


def split_columns(num_sections: int, width: int, most: int, unit: int = 1) -> list[Block]:
    """Blocks of at most ``most`` columns (of all their sections together), about equally wide.

    Their widths are multiples of 16 where they can be: what is left over runs outside of vector
    registers. They are multiples of ``unit``, neighbouring columns that belong together, and hold
    one such group at least.
    """
    if most >= width:
        parts = _equal_parts(num_sections, min(num_sections, most // width), 1)
        return [Block(part, slice(0, width)) for part in parts]
    columns = _equal_parts(width, max(most, unit), _VECTOR if most >= _VECTOR else unit)
    return [Block(slice(s, s + 1), part) for part in columns for s in range(num_sections)]


def _equal_parts(size: int, most: int, unit: int) -> list[slice]:
    """Parts of at most ``most``, in multiples of a unit but for the last."""
    for count in range(math.ceil(size / most), size + 1):
        ends = [unit * (i * size // (count * unit)) for i in range(count)] + [size]
        if all(0 < b - a <= most for a, b in pairwise(ends)):
            break
    return [slice(a, b) for a, b in pairwise(ends)]


class ColumnTable:
    """Vectors ``[n, s, d]`` as a file ``[n, s_k, b_k]`` for each block of columns.

    Args:
        folder (Path): Where the files are.
        name (str): The beginning of their names.
        num_rows (int): :math:`n`.
        blocks (list of Block): The columns of each file.
        dtype (torch.dtype): Real or complex number type.
    """

    def __init__(
        self, folder: Path, name: str, num_rows: int, blocks: list[Block], dtype: torch.dtype
    ):
        self.folder, self.name, self.num_rows = folder, name, num_rows
        self.blocks, self.dtype = blocks, dtype

    def path(self, k: int) -> Path:
        """The file of a block."""
        return self.folder / f"{self.name}-{k:04d}.bin"

    def num_bytes(self, k: int) -> int:
        """Size of the file of a block."""
        sections, columns = self.blocks[k].shape
        return self.num_rows * sections * columns * self.dtype.itemsize

    def check(self, k: int) -> None:
        """Raises :class:`~sheafprop.errors.FormatError` where the file of a block was cut."""
        check_size(self.path(k), self.num_bytes(k))

    def remove(self, k: int) -> None:
        """Removes the file of a block."""
        with suppress(FileNotFoundError):
            self.path(k).unlink()

    def write_rows(self, numbers: Iterable[int], rows: Iterable[Tensor]) -> None:
        """Writes the files of some blocks from pieces ``[m, s, d]`` of all rows, in order.

        Raises:
            StorageError: If the disk is full, before anything is computed.
        """
        numbers = list(numbers)
        with storage_errors(self.folder, "written"), ExitStack() as stack:
            self.folder.mkdir(parents=True, exist_ok=True)
            files = {k: stack.enter_context(open(self.path(k), "wb")) for k in numbers}
            for k, file in files.items():
                reserve(file.fileno(), self.num_bytes(k))
            for piece in rows:
                for k, file in files.items():
                    block = self.blocks[k]
                    part = piece[:, block.sections, block.columns].to(self.dtype)
                    file.write(part.contiguous().numpy().data)
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())

    @contextmanager
    def open_rows(self) -> Iterator["RowReader"]:
        """Reads rows from the files of all blocks, in order."""
        with storage_errors(self.folder, "read"), ExitStack() as stack:
            files = [stack.enter_context(open(self.path(k), "rb")) for k in range(len(self.blocks))]
            yield RowReader(self, files)

    def read_block(self, k: int) -> Tensor:
        """The columns of a block, ``[n, s, b]``."""
        self.check(k)
        out = empty((self.num_rows, *self.blocks[k].shape), torch.empty(0, dtype=self.dtype))
        with storage_errors(self.path(k), "read"), open(self.path(k), "rb") as file:
            _read_into(file, out)
        return out

    def write_block(self, k: int, x: Tensor) -> int:
        """Writes the columns of a block, as a whole or not at all; returns their CRC-32.

        Raises:
            StorageError: If the disk is full.
        """
        path, value = self.path(k), 0
        temporary = path.with_suffix(".tmp")
        data = _bytes_of(x.contiguous())
        with storage_errors(path, "written"):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                with open(temporary, "wb") as file:
                    reserve(file.fileno(), len(data))
                    for start in range(0, len(data), _PIECE):
                        piece = data[start : start + _PIECE]
                        value = zlib.crc32(piece, value)
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            finally:
                with suppress(FileNotFoundError):
                    temporary.unlink()
            sync_folder(self.folder)
        return value


class RowReader:
    """Reads the next rows of a table of column blocks."""

    def __init__(self, table: ColumnTable, files: list):
        self._table, self._files = table, files

    def next(self, count: int) -> Tensor:
        """The next ``count`` rows, ``[count, s, d]``."""
        blocks, dtype = self._table.blocks, self._table.dtype
        shape = blocks[-1].sections.stop, blocks[-1].columns.stop
        out = torch.empty(count, *shape, dtype=dtype)
        for block, file in zip(blocks, self._files, strict=True):
            part = torch.empty(count, *block.shape, dtype=dtype)
            _read_into(file, part)
            out[:, block.sections, block.columns] = part
        return out


def _read_into(file, out: Tensor) -> None:  # type: ignore[no-untyped-def]
    view, start = _bytes_of(out), 0
    while start < len(view):
        count = file.readinto(view[start : start + _PIECE])
        if not count:
            raise OSError(f"the file ends after {start} of {len(view)} bytes")
        start += count


def _bytes_of(x: Tensor) -> memoryview:
    return x.numpy().reshape(-1).view("uint8").data
