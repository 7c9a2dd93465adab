"""What follows the matrix product of scores, compiled by numba; imported where it first runs."""

import numpy as np

from sheafprop.query.set_loops import compiled


@compiled
def finish_rows(energies, shared, index, limit, weight, near, total, first, fresh, lo, hi):  # type: ignore[no-untyped-def]
    """Adds what queries share and subtracts the roots from ``total``, from column ``first`` on.

    Where ``fresh``, ``total`` counts as zero. Rows with an energy up to their limit are left as
    energies, and marked.
    """
    for row in range(lo, hi):
        own = energies[row]
        least = own[0]
        if shared.shape[0] > 0:
            more = shared[index[row]]
            least = own[0] + more[0]
            for column in range(own.size):
                own[column] += more[column]
                least = min(least, own[column])
        else:
            for column in range(own.size):
                least = min(least, own[column])
        near[row] = not least > limit[row]
        if not near[row]:
            out = total[row, first : first + own.size]
            if fresh:
                for column in range(own.size):
                    out[column] = -weight * np.sqrt(own[column])
            else:
                for column in range(own.size):
                    out[column] -= weight * np.sqrt(own[column])
