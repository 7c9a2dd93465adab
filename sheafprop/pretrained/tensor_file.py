"""Files of tensors in the safetensors layout: written in pieces, read by mapping."""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sheafprop.errors import FormatError
from sheafprop.files import write_stream

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.uint8: "U8",
}
# Bytes that are copied and hashed at once, and what data in a file begin at a multiple of.
_PIECE = 2**24
_ALIGNMENT = 64


class Pieces(NamedTuple):
    """A tensor that is written piece by piece along its first dimension."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: Iterable[Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> "Pieces":
        """The pieces of a tensor that is there."""
        tensor = tensor.detach()
        width = max(1, tensor[:1].numel() * tensor.element_size())
        return cls(tensor.dtype, tuple(tensor.shape), tensor.split(max(1, _PIECE // width)))


class StoredFile(NamedTuple):
    """A file of a model folder as its manifest has it, and which file of the disk it was."""

    path: Path
    size: int
    sha256: str
    identity: tuple[int, ...]

    @classmethod
    def of(cls, path: Path, size: int, sha256: str) -> "StoredFile":
        """A file that is there."""
        path = Path(os.path.realpath(path))
        return cls(path, size, sha256, _identity(path))

    def link(self, target: Path) -> bool:
        """Gives the same file a second name; False where it is another one now or cannot."""
        try:
            if _identity(self.path) != self.identity:
                return False
            os.link(self.path, target)
        except OSError:  # another disk, or a file system without links
            return False
        return True


def _identity(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor | Pieces], metadata: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Writes tensors as safetensors without holding them in memory.

    Args:
        path: A file that is not there yet.
        tensors, metadata: See :func:`tensor_bytes`.

    Returns:
        The size of the file and its SHA-256.

    Raises:
        StorageError: If the disk refuses.
        ValueError: If pieces do not add up to their tensor.
    """
    return write_stream(path, tensor_bytes(tensors, metadata))


def tensor_bytes(
    tensors: Mapping[str, Tensor | Pieces], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """The parts of a safetensors file.

    Args:
        tensors: Tensors by name, or what they are put together from.
        metadata: Texts for the header.

    Raises:
        ValueError: If pieces do not add up to their tensor.
    """
    given = {n: Pieces.of(t) if isinstance(t, Tensor) else t for n, t in tensors.items()}
    # Larger numbers first, so that each tensor begins at a multiple of its own.
    names = sorted(given, key=lambda name: -given[name].dtype.itemsize)
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, shape = end, given[name].shape
        end += given[name].dtype.itemsize * torch.Size(shape).numel()
        kind = _TYPES[given[name].dtype]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    yield struct.pack("<Q", len(text)) + text
    for name in names:
        yield from _bytes(name, given[name])


def _bytes(name: str, pieces: Pieces) -> Iterator[memoryview]:
    left = pieces.dtype.itemsize * torch.Size(pieces.shape).numel()
    for part in pieces.parts:
        if part.numel():  # torch views no empty tensor as another type
            part = part.detach().to(pieces.dtype).cpu().contiguous().flatten().view(torch.uint8)
            left -= part.numel()
            yield part.numpy().data
    if left:
        raise ValueError(f"the pieces of {name!r} do not add up to {list(pieces.shape)}")


class TensorFile:
    """The tensors of a safetensors file, mapped: what is not looked at is not read.

    The mapping is private: writing into a tensor leaves the file as it is.

    Args:
        path: The file.

    Raises:
        FormatError: If it is not such a file, or a part of one.
    """

    def __init__(self, path: Path):
        try:
            with safe_open(path, framework="pt") as file:
                self.metadata: dict[str, str] = file.metadata() or {}
                self.tensors: dict[str, Tensor] = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
            raise FormatError(
                f"'{path}' is refused: it holds no tensors ({error}); copy or write the model "
                "folder again."
            ) from error
        self.path = path

    def take(self, name: str, *, dim: int, dtypes: tuple[torch.dtype, ...]) -> Tensor:
        """A tensor of one of some types with so many dimensions.

        Raises:
            FormatError: If the file has none.
        """
        found = self.tensors.get(name)
        if found is None or found.dim() != dim or found.dtype not in dtypes:
            got = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise FormatError(
                f"'{self.path}' is refused: {name!r} must be {names} with {dim} dimensions "
                f"(got {got})."
            )
        return found


def smallest_integers(largest: int) -> torch.dtype:
    """The smaller of int32 and int64 that holds numbers up to ``largest``."""
    return torch.int32 if largest < 2**31 else torch.int64
