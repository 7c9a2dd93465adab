"""Squared distances of a few queries to many candidates, from products and without gradients.

The pairs that are so close that a product loses half of their digits or more are computed again
from the difference.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.rows import real_rows
from sheafprop.kernels.threads import SpareMemory, run_chunks, run_rows

# Numbers in one intermediate block (64 MiB of float32): where memory would otherwise grow with
# rows x candidates x width, work proceeds in blocks of about this size.
BLOCK_ELEMENTS = 2**24
# Candidates whose vectors, mapped or not, stay in the cache.
_CHUNK_NUMBERS = 2**19


def square_lengths(rows: Tensor) -> Tensor:
    """Squared lengths of ``rows`` ``[C, d]``."""
    return torch.linalg.vector_norm(real_rows(rows), dim=1).square_()


def close_pairs(
    squared: Tensor, own: Tensor, other: Tensor, factor: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Queries and candidates whose squared distance may have lost half of its digits or more.

    Rounding leaves an error of about ``eps (own + factor other)`` in a squared distance.

    Args:
        squared (Tensor): Squared distances from products, ``[B, C]``.
        own (Tensor): Squared lengths of the queries, ``[B, 1]``.
        other (Tensor): Those of the candidates, ``[C]``, or of their images, ``[B, C]``.
        factor (Tensor, optional): A bound on how much larger the images of candidates are, in
            squares, ``[B, 1]``.
    """
    if squared.numel() == 0:
        empty = torch.empty(0, dtype=torch.long, device=squared.device)
        return empty, empty
    share = math.sqrt(torch.finfo(squared.dtype).eps)
    limit = share * (own + factor * other.amax(-1, keepdim=True))
    near = (squared.amin(1, keepdim=True) <= limit).squeeze(1).nonzero().squeeze(1)
    other = other[near] if other.dim() == 2 else other
    limits = other * (factor[near] if isinstance(factor, Tensor) else factor) + own[near]
    rows, columns = (squared[near] <= limits.mul_(share)).nonzero(as_tuple=True)
    return near[rows], columns


def correct_close(
    squared: Tensor, a: Tensor, b: Tensor, own: Tensor, other: Tensor, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Corrects the squared distances ``[B, C]`` of close pairs of ``a [B, d]`` and ``b [C, d]``,
    scaled by ``scale [B, d]``, in place, and returns these pairs.

    Afterwards no squared distance is negative. ``own`` and ``other`` are those of
    :func:`close_pairs`.
    """
    pairs = close_pairs(squared, own, other)
    for i, j in pairs_in_blocks(*pairs, a.size(1)):
        image = b[j] if scale is None else b[j] * scale[i]
        squared[i, j] = real_rows(a[i] - image).square().sum(1)
    return pairs


def pairs_in_blocks(
    rows: Tensor, columns: Tensor, width: int, *more: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    """Pairs, and what goes with them, in blocks of bounded memory."""
    step = max(1, BLOCK_ELEMENTS // max(1, width))
    return zip(*(index.split(step) for index in (rows, columns, *more)), strict=True)


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
    rows, target = real_rows(rows), real_rows(target)
    out = target.new_empty(len(target), len(rows)) if out is None else out
    if len(target) == 1 and rows.is_contiguous() and backend_of(rows) == "numba":
        # Twice as fast as a product, and right in all digits without the lengths.
        from sheafprop.kernels.distance_loops import near_squares as loop

        arrays = (rows.numpy(), target[0].contiguous().numpy(), out[0].numpy())
        run_rows(loop, arrays, np.arange(len(rows) + 1), rows.shape[1])
        return out
    squares = square_lengths(rows) if lengths is None else lengths()
    own = target.square().sum(1, keepdim=True)
    if len(target) > 1:
        torch.addmm(squares.unsqueeze(0), target, rows.T, alpha=-2, out=out).add_(own)
        correct_close(out, target, rows, own, squares)
        return out

    def multiply(part: slice) -> None:
        near = out[0, part]
        torch.addmv(squares[part], rows[part], target[0], alpha=-2, out=near).add_(own[0])

    if len(target):
        # Nothing is read twice, so that chunks may exceed the cache.
        run_chunks(multiply, chunks_of(len(rows), max(1, rows.shape[1] // 8)), rows.numel())
        correct_close(out, target, rows, own, squares)
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
        squares = (maps * maps.conj()).real @ (rows * rows.conj()).real.T
        pulled = real_rows(target * maps.conj())
        own = square_lengths(target).unsqueeze(1)
        torch.addmm(squares, pulled, real_rows(rows).T, alpha=-2, out=out).add_(own)
        correct_close(out, target, rows, own, squares, maps)
        return out
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
