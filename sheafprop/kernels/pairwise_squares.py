"""Squared distances of a few queries to many candidates, from products and without gradients.

The square of a distance close to zero may be rounding alone, of either sign.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.rows import real_rows
from sheafprop.kernels.threads import SpareMemory, run_chunks, run_rows

# Candidates whose vectors, mapped or not, stay in the cache.
_CHUNK_NUMBERS = 2**19


def square_lengths(rows: Tensor) -> Tensor:
    """Squared lengths of ``rows`` ``[C, d]``."""
    return torch.linalg.vector_norm(real_rows(rows), dim=1).square_()


def near_squares(
    rows: Tensor,
    target: Tensor,
    lengths: Callable[[], Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Squared distances ``[B, C]`` of targets ``[B, d]`` to ``rows`` ``[C, d]``.

    Args:
        rows, target (Tensor): Real or complex.
        lengths (callable, optional): Returns :func:`square_lengths` of the rows.
        out (Tensor, optional): Where to put the result.
    """
    squares = square_lengths(rows) if lengths is None else lengths()
    rows, target = real_rows(rows), real_rows(target)
    out = target.new_empty(len(target), len(rows)) if out is None else out
    own = target.square().sum(1, keepdim=True)
    if len(target) > 1:
        return torch.addmm(squares.unsqueeze(0), target, rows.T, alpha=-2, out=out).add_(own)

    def multiply(part: slice) -> None:
        near = out[0, part]
        torch.addmv(squares[part], rows[part], target[0], alpha=-2, out=near).add_(own[0])

    if len(target):
        # Nothing is read twice, so that chunks may exceed the cache.
        run_chunks(multiply, chunks_of(len(rows), max(1, rows.shape[1] // 8)), rows.numel())
    return out


def scaled_squares(rows: Tensor, maps: Tensor, target: Tensor, out: Tensor | None = None) -> Tensor:
    """Squared distances ``[B, C]`` of targets to ``rows`` under the diagonal map of each target.

    Args:
        rows (Tensor): ``[C, d]``.
        maps, target (Tensor): ``[B, d]``.
        out (Tensor, optional): Where to put the result.
    """
    out = target.real.new_empty(len(target), len(rows)) if out is None else out
    if maps.is_complex() or backend_of(rows) != "numba":
        squares = (rows * rows.conj()).real @ (maps * maps.conj()).real.T
        pulled = real_rows(target * maps.conj())
        own = square_lengths(target).unsqueeze(1)
        return torch.addmm(squares.T, pulled, real_rows(rows).T, alpha=-2, out=out).add_(own)
    from sheafprop.kernels.distance_loops import scaled_squares as loop

    arrays = (rows.numpy(), maps.contiguous().numpy(), target.contiguous().numpy(), out.numpy())
    run_rows(loop, arrays, np.arange(len(rows) + 1) * len(maps), rows.shape[1])
    return out


def mapped_squares(rows: Tensor, matrix: Tensor, target: Tensor) -> Tensor:
    """Squared distances ``[B, C]`` of targets ``[B, k]`` to ``rows`` under a ``matrix``."""
    out = target.real.new_empty(len(target), len(rows))
    chunks = chunks_of(len(rows), max(matrix.shape))
    spare = SpareMemory(chunks[0].stop * len(matrix) if chunks else 0, target)

    def measure(part: slice) -> None:
        with spare.take(part.stop - part.start, len(matrix)) as image:
            if len(target) == 1:
                torch.addmm(target, rows[part], matrix.T, beta=-1, out=image)
                torch.linalg.vector_norm(image, dim=1, out=out[0, part])
                out[0, part].square_()
            else:
                torch.mm(rows[part], matrix.T, out=image)
                near_squares(image, target, out=out[:, part])

    run_chunks(measure, chunks, matrix.numel() * len(rows))
    return out


def chunks_of(size: int, width: int) -> list[slice]:
    """Chunks of ``size`` rows of a ``width`` that stay in the cache."""
    step = max(256, _CHUNK_NUMBERS // max(1, width))
    return [slice(i, min(i + step, size)) for i in range(0, size, step)]
