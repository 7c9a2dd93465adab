"""Reads what ``torch.save`` wrote without importing or calling anything that the file names."""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from sheafprop.errors import FormatError
from sheafprop.files import storage_errors

_DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
}


#: What ``torch.compile`` and (distributed) data parallel training call the module inside.
_WRAPPERS = ("_orig_mod", "module")


class Inert:
    """Stands for an object whose class was not imported: its name, arguments and state."""

    origin = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Inert":
        made = super().__new__(cls)
        made.state = {}
        return made

    def __init__(self, *args: Any, **kwargs: Any):
        self.state: Any = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        """Items of lists are not kept."""

    def extend(self, items: Any) -> None:
        """Items of lists are not kept."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Items of dictionaries are not kept."""


def load_inert(path: str | PathLike[str]) -> Any:
    """Loads a file of ``torch.save``: tensors and containers as such, all else as :class:`Inert`.

    Raises:
        FormatError: If the file is truncated or of another format.
        StorageError: If it cannot be read.
    """
    with storage_errors(path, "read"):
        try:
            with zipfile.ZipFile(path) as archive:
                (name,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
                with archive.open(name) as file:
                    return _InertUnpickler(file, archive, name.removesuffix("data.pkl")).load()
        except OSError:
            raise
        except Exception as error:
            raise FormatError(
                f"'{path}' is not a complete file of torch.save (1.6 or later): {error}"
            ) from error


def state_of(module: Any) -> dict[str, Tensor]:
    """The state dict of an inert module."""
    out: dict[str, Tensor] = {}
    state = module.state if isinstance(module, Inert) else {}
    if not isinstance(state, dict):
        return out
    for key in ("_parameters", "_buffers"):
        for name, value in (state.get(key) or {}).items():
            if isinstance(value, Tensor):
                out[name] = value
    for name, child in (state.get("_modules") or {}).items():
        out |= {f"{name}.{inner}": value for inner, value in state_of(child).items()}
    return out


def unwrap(module: Inert) -> Inert:
    """The module inside those of ``torch.compile`` and of data parallel training."""
    while isinstance(module.state, dict):
        children = module.state.get("_modules") or {}
        inner = [children[name] for name in _WRAPPERS if name in children]
        if len(children) != 1 or not inner or not isinstance(inner[0], Inert):
            break
        module = inner[0]
    return module


def strip_prefixes(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict without the prefixes that wrappers put before all of its names."""
    out = dict(state)
    for _ in range(2 * len(_WRAPPERS)):
        for prefix in (f"{name}." for name in _WRAPPERS):
            if out and all(name.startswith(prefix) for name in out):
                out = {name.removeprefix(prefix): value for name, value in out.items()}
    return out


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, archive: zipfile.ZipFile, prefix: str):
        super().__init__(file)
        self._archive, self._prefix = archive, prefix
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("builtins", "set"):
            return set
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) in (
            ("torch._utils", "_rebuild_parameter"),
            ("torch._utils", "_rebuild_parameter_with_state"),
        ):
            return _parameter
        return type(name, (Inert,), {"origin": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Tensor:
        kind, storage, key, _, size = pid
        dtype = _DTYPES.get(getattr(storage, "__name__", ""))
        if kind != "storage" or dtype is None:
            raise pickle.UnpicklingError(f"a storage of kind {storage!r}")
        if key not in self._storages:
            content = self._archive.read(f"{self._prefix}data/{key}")
            values = torch.frombuffer(bytearray(content), dtype=dtype) if content else None
            self._storages[key] = torch.zeros(0, dtype=dtype) if values is None else values
        if self._storages[key].numel() < size:
            raise pickle.UnpicklingError("a tensor is cut off")
        return self._storages[key]


def _tensor(storage: Tensor, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
    return torch.as_strided(storage, tuple(size), tuple(stride), offset).clone()


def _parameter(data: Tensor, *_: Any) -> Tensor:
    return data
