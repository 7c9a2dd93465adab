"""A symmetric matrix for each vertex, times its features."""

import numpy as np
from torch import Tensor

from sheafprop.kernels.backend import backend_of, numba_loops
from sheafprop.kernels.coupling import needs_gradient
from sheafprop.kernels.memory import empty
from sheafprop.kernels.rows import take_rows
from sheafprop.kernels.threads import run_rows


def multiply_blocks(blocks: Tensor, kind: Tensor, x: Tensor) -> Tensor:
    """Multiplies features ``[n, s, d]`` by the Hermitian blocks ``[m, d, d]`` that ``kind [n]``
    picks.

    A matrix is read once for each vertex, whatever the number of sections; the loop reads it in the
    order of memory, which batched matrix products do not.
    """
    fits = backend_of(x) == "numba" and x.dtype == blocks.dtype and not x.is_complex()
    if not fits or needs_gradient(blocks, x):
        return x @ take_rows(blocks, 0, kind).mT
    x = x.detach().contiguous()
    out = empty(tuple(x.shape), x)
    n, d = kind.numel(), blocks.shape[-1]
    run_rows(
        numba_loops().symmetric_blocks,  # type: ignore[union-attr]
        (blocks.detach().contiguous().numpy(), kind.numpy(), x.numpy(), out.numpy()),
        np.arange(n + 1) * d,
        x.shape[1] * d,
    )
    return out
