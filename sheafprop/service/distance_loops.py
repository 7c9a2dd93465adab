"""Distances of rows under diagonal maps, compiled by numba; imported where they first run."""

from collections.abc import Callable
from typing import Any

from numba import njit


def _compiled(function: Callable) -> Any:
    # Sums in any order, so that they run in vector registers.
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "nsz", "contract"}}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        # No folder to keep the machine code in: compile for this process alone.
        return njit(**options)(function)


@_compiled
def scaled_squares(rows, scale, target, out, lo, hi):  # type: ignore[no-untyped-def]
    """Squared distances ``[B, N]`` of rows ``[N, d]``, scaled by ``[B, d]``, to targets."""
    for n in range(lo, hi):
        x = rows[n]
        for b in range(scale.shape[0]):
            total = rows.dtype.type(0)
            for j in range(x.size):
                difference = scale[b, j] * x[j] - target[b, j]
                total += difference * difference
            out[b, n] = total
