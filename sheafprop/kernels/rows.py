"""Sums, picks and lengths of rows.

Complex numbers are summed and picked as pairs of real ones: some devices (Apple's MPS) add rows of
real numbers only.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor


def add_rows(out: Tensor, dim: int, index: Tensor, rows: Tensor) -> Tensor:
    """Computes ``out.index_add(dim, index, rows)``, for negative ``dim`` too."""
    if not out.is_complex():
        return out.index_add(dim, index, rows)
    pairs = as_pairs(out).index_add(dim % out.dim(), index, as_pairs(rows.to(out.dtype)))
    return torch.view_as_complex(pairs)


def take_rows(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Computes ``x.index_select(dim, index)``, whose gradient is a sum over rows."""
    if not x.is_complex():
        return x.index_select(dim, index)
    return torch.view_as_complex(as_pairs(x).index_select(dim % x.dim(), index))


def as_pairs(x: Tensor) -> Tensor:
    """A complex tensor as a real one with another dimension of size 2 at the end."""
    return torch.view_as_real(x.resolve_conj())


def scale_rows(x: Tensor, length: float) -> Tensor:
    """Scales each row ``[..., d]`` to a length; rows of zeros stay."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    ratio = length / norm.clamp_min(torch.finfo(norm.dtype).tiny)
    return x * torch.where(norm > 0, ratio, 1.0)


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Switches autocast off on the device of :obj:`tensor`: distances in half precision tie."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def promote(tensor: Tensor) -> Tensor:
    """Returns :obj:`tensor` in single precision at least."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def real_rows(x: Tensor) -> Tensor:
    """Rows ``[..., d]`` with two neighbouring columns for each complex number."""
    return torch.view_as_real(x.resolve_conj()).flatten(-2) if x.is_complex() else x
