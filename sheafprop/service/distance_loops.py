"""Distances of rows under diagonal maps, compiled by numba; imported where they first run."""

from sheafprop.kge.difference_loops import compiled


@compiled
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
