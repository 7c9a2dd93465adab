"""Which implementation of the loops over neighbours runs, and what they have in common."""

import cmath
import functools
import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Backend = Literal["numba", "triton", "torch"]

_FORCED: ContextVar[Backend | None] = ContextVar("sheafprop_backend", default=None)
_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def backend_of(x: Tensor) -> Backend:
    """The implementation for these features: numba on CPU, Triton on CUDA, torch otherwise.

    Torch's own operations are also taken where a program is traced or transformed.
    """
    forced = _FORCED.get()
    if is_traced(x) or x.dtype not in _DTYPES:
        return "torch"
    if forced is not None:
        return forced
    if x.device.type == "cpu" and numba_loops() is not None:
        return "numba"
    if x.device.type == "cuda" and triton_loops() is not None:
        return "triton"
    return "torch"


def is_traced(x: Tensor) -> bool:
    """Whether a compiler, a function transform or a tensor subclass looks at the operations."""
    return (
        torch.compiler.is_compiling()
        or type(x) not in (Tensor, torch.nn.Parameter)
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite; taken for granted where traced."""
    tensor = tensor.detach()
    if is_traced(tensor):
        return True
    # One pass without a mask; only a sum that is not finite needs a second look.
    return cmath.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


@contextmanager
def leave_inference_mode() -> Iterator[None]:
    """For tensors that are kept for later calls: what is made in ``torch.inference_mode`` could
    neither take part in gradients nor be written to outside of it."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    # Leaving the mode would switch gradients on.
    with torch.inference_mode(False), torch.no_grad():
        yield


def outside_inference(tensor: Tensor) -> Tensor:
    """A copy, where the tensor was made in ``torch.inference_mode``; else the tensor itself."""
    if is_traced(tensor) or not tensor.is_inference():
        return tensor
    with leave_inference_mode():
        return tensor.clone()


def outside_transforms(*tensors: Tensor | None) -> AbstractContextManager[Any]:
    """Leaves ``torch.func`` transforms that none of the tensors takes part in."""
    if any(t is not None and torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors):
        return nullcontext()
    return torch._C._DisableFuncTorch()


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Forces one implementation, for tests and comparisons."""
    token = _FORCED.set(backend)
    try:
        yield
    finally:
        _FORCED.reset(token)


@functools.cache
def numba_loops() -> ModuleType | None:
    """The loops compiled by numba, or None, with one warning, where numba does not work."""
    try:
        return importlib.import_module("sheafprop.kernels.numba_loops")
    except Exception as error:
        warnings.warn(
            f"numba cannot be used ({type(error).__name__}: {error}): propagation falls back to "
            "plain torch operations, which are several times slower",
            stacklevel=2,
        )
        return None


@functools.cache
def triton_loops() -> ModuleType | None:
    """The Triton kernels, or None where Triton is not installed."""
    try:
        return importlib.import_module("sheafprop.kernels.triton_loops")
    except ImportError:
        return None


def stable_order(key: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """Starts of the runs of equal keys ``[num_keys + 1]``, and the stable order that sorts them."""
    loops = numba_loops() if key.device.type == "cpu" else None
    # Counting pays while the counters are not many more than the keys.
    if loops is None or num_keys > 8 * key.numel() + 1024:
        return run_starts(key, num_keys), torch.argsort(key, stable=True)
    start, order = loops.counting_order(key.numpy(), num_keys)
    return torch.from_numpy(start), torch.from_numpy(order)


def sort_rows(
    columns: Sequence[tuple[Tensor, int]], value: Tensor | None
) -> tuple[list[Tensor], Tensor | None]:
    """Columns of ids below some sizes, sorted by the first, then by the next, with their values.

    The ids are packed into one number each where they fit: those are sorted without an order, whose
    random reads and writes would cost more than the sort.

    Args:
        columns: Ids ``[m]`` and their bounds.
        value (Tensor, optional): What goes with the rows, ``[m]``.
    """
    bits = [max(1, (size - 1).bit_length()) for _, size in columns]
    if sum(bits) > 63:
        order = torch.argsort(columns[-1][0], stable=True)
        for ids, _ in reversed(columns[:-1]):
            order = order[torch.argsort(ids[order], stable=True)]
        return [ids[order] for ids, _ in columns], None if value is None else value[order]
    key = columns[0][0].clone()
    for (ids, _), width in zip(columns[1:], bits[1:], strict=True):
        key.bitwise_left_shift_(width).bitwise_or_(ids)
    if key.device.type != "cpu":
        key, order = torch.sort(key)
        value = None if value is None else value[order]
    elif value is None:
        key.numpy().sort()
    else:
        order = torch.from_numpy(np.argsort(key.numpy()))
        key, value = key[order], value[order]
    parts: list[Tensor] = []
    for width in reversed(bits[1:]):
        parts.insert(0, key & ((1 << width) - 1))
        key.bitwise_right_shift_(width)
    return [key, *parts], value


def run_starts(key: Tensor, num_keys: int) -> Tensor:
    """Starts of the runs of ascending keys, and their number, ``[num_keys + 1]``."""
    if key.device.type == "cpu" and (loops := numba_loops()) is not None:
        return torch.from_numpy(loops.run_starts(key.numpy(), num_keys))
    counts = torch.bincount(key, minlength=num_keys)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def compact(index: Tensor, size: int) -> Tensor:
    """Ids below ``size`` in the smallest integers that hold them: they are read at every step."""
    return index.to(torch.int32 if size < 2**31 else torch.int64)


def entries_ahead(row_bytes: int) -> int:
    """How many entries ahead to fetch features: 12 KiB of rows under way, within a first cache."""
    return max(8, min(96, 12 * 1024 // max(1, row_bytes)))


def as_real_rows(x: Tensor) -> Tensor:
    """``[n, ...]`` to contiguous real ``[n, width]``; a complex number becomes two columns."""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    if x.is_complex():
        x = torch.view_as_real(x)
    return x.flatten(1)


def as_arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    """Contiguous arrays for a compiled loop, without gradients."""
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)


def as_array(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()


def scalars(dtype: torch.dtype, *values: float) -> Any:
    """Factors in the real number type of the features, for the compiled loops."""
    return np.array(
        values, dtype=np.float32 if dtype in (torch.float32, torch.complex64) else float
    )
