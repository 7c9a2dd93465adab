"""Large allocations: announced before they happen, and on huge pages where the system has them."""

import ctypes
import functools
import logging
import mmap
from typing import Any

import torch
from torch import Tensor

_LOGGER = logging.getLogger("sheafprop")
_ANNOUNCED = 10**9
# Tensors smaller than this are left on ordinary pages, as numpy does.
_HUGE = 2**22


def announce(num_bytes: int, what: str) -> None:
    """Logs an estimate of an allocation above 1 GB."""
    if num_bytes > _ANNOUNCED:
        _LOGGER.warning("Allocating about %.1f GB for %s", num_bytes / 1e9, what)


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An uninitialized tensor; rows of a large one are found faster through huge pages."""
    out = torch.empty(shape, dtype=like.dtype, device=like.device)
    num_bytes = out.numel() * out.element_size()
    if out.device.type == "cpu" and num_bytes >= _HUGE and (advise := _madvise()) is not None:
        page = mmap.PAGESIZE
        first = -(-out.data_ptr() // page) * page
        length = (out.data_ptr() + num_bytes - first) // page * page
        advise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
    return out


@functools.cache
def _madvise() -> Any:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    return getattr(ctypes.CDLL(None), "madvise", None)
