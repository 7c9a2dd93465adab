import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

# Rounding in a product of maps along a path, per map on it.
_ROUNDING = 64.0


class ColumnSystem:
    r"""The matrix of one coordinate of diagonal maps, with its kernel read off the graph.

    In one coordinate a sheaf is a graph with a gain on each edge: :math:`A = B^* B + a M` for the
    coboundary :math:`(B x)_e = \sqrt{w_e} (c_e x_t - a_e x_h)`. A component has a kernel vector
    :math:`p`, one, if :math:`c_e p_t = a_e p_h` holds on all its edges; :math:`p` is then a product
    of gains along a spanning tree, and an edge with only one end among the vertices, or with a map
    that is zero on one side, forbids it.

    Args:
        head, tail (ndarray): Vertices of the edges, ``-1`` where the end is not among them.
        head_map, tail_map (ndarray): :math:`a_e` and :math:`c_e`.
        weight (ndarray): :math:`w_e`.
        metric (ndarray): The diagonal of :math:`M`, positive.
        teleport (float): :math:`a`.
        eps (float): Relative precision of the maps.
    """

    def __init__(
        self,
        head: np.ndarray,
        tail: np.ndarray,
        head_map: np.ndarray,
        tail_map: np.ndarray,
        weight: np.ndarray,
        metric: np.ndarray,
        *,
        teleport: float,
        eps: float,
    ):
        self._metric, self._teleport = metric, teleport
        self._held = np.zeros(0, dtype=np.int64)
        n = metric.size
        starts, ends = (head >= 0) & (head_map != 0), (tail >= 0) & (tail_map != 0)
        keep = (weight > 0) & (starts | ends)
        head, tail, starts, ends = head[keep], tail[keep], starts[keep], ends[keep]
        head_map, tail_map, root = head_map[keep], tail_map[keep], np.sqrt(weight[keep])
        edge = np.arange(head.size)
        row = np.concatenate([edge[ends], edge[starts]])
        column = np.concatenate([tail[ends], head[starts]])
        value = np.concatenate([(root * tail_map)[ends], -(root * head_map)[starts]])
        # The two entries of a loop are added up.
        self._coboundary = scipy.sparse.coo_array((value, (row, column)), (head.size, n)).tocsr()
        both = starts & ends
        tied = np.zeros(n, dtype=bool)
        tied[np.where(ends, tail, head)[~both]] = True
        self._kernel = (
            scipy.sparse.csr_array((n, 0))
            if teleport
            else self._kernel_of(
                head[both], tail[both], head_map[both], tail_map[both], tied, _ROUNDING * eps
            )
        )

    @property
    def dtype(self) -> np.dtype:
        """Number type of the matrix."""
        return self._coboundary.dtype

    @property
    def is_complex(self) -> bool:
        """Whether the matrix is."""
        return np.iscomplexobj(self._coboundary.data)

    def apply(self, z: np.ndarray) -> np.ndarray:
        """Multiplies by the matrix."""
        image = self._coboundary.conj().T @ (self._coboundary @ z)
        return image + self._teleport * self._metric[:, None] * z if self._teleport else image

    def scale(self, z: np.ndarray) -> np.ndarray:
        r"""Multiplies by :math:`M`."""
        return self._metric[:, None] * z

    def factor(self) -> scipy.sparse.linalg.SuperLU | None:
        """Factors of the matrix with one vertex of each kernel vector held; None if a pivot of it
        is zero to all digits."""
        matrix = self._coboundary.conj().T @ self._coboundary
        extra = self._teleport * self._metric
        diagonal = matrix.diagonal().real[self._held]
        extra[self._held] = np.where(diagonal > 0, diagonal, 1.0)
        try:
            # Positive definite: a symmetric ordering, and no pivoting that would undo it.
            return scipy.sparse.linalg.splu(
                (matrix + scipy.sparse.diags_array(extra)).tocsc(),
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options=dict(SymmetricMode=True),
            )
        except RuntimeError:
            return None

    def solve(self, factor: scipy.sparse.linalg.SuperLU, f: np.ndarray) -> np.ndarray:
        r"""The solution :math:`M`-orthogonal to the kernel, for the part of ``f`` in the range."""
        kernel, adjoint = self._kernel, self._kernel.conj().T
        z = factor.solve(f - self.scale(kernel @ (adjoint @ f)))
        return z - kernel @ (adjoint @ self.scale(z))

    def _kernel_of(
        self,
        head: np.ndarray,
        tail: np.ndarray,
        head_map: np.ndarray,
        tail_map: np.ndarray,
        tied: np.ndarray,
        rounding: float,
    ) -> scipy.sparse.csr_array:
        """One column for each kernel vector, of length one in the metric."""
        n = tied.size
        ones = np.ones(head.size)
        graph = scipy.sparse.coo_array((ones, (head, tail)), (n, n)).tocsr()
        count, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
        gain, depth = _gains(head, tail, head_map, tail_map, label, count)
        # c p_t / (a p_h) is one on every edge, if there is a kernel vector.
        with np.errstate(over="ignore"):
            ratio = np.exp(gain[tail] + _log(tail_map) - gain[head] - _log(head_map))
        bad = ~(np.abs(ratio - 1) <= rounding * (1 + depth[head] + depth[tail]))
        singular = np.ones(count, dtype=bool)
        singular[label[tied]] = False
        singular[label[head[bad]]] = False
        # Scaled to the largest entry first: a product of many gains may exceed all numbers.
        size = gain.real + 0.5 * np.log(self._metric)
        largest = np.full(count, -np.inf)
        np.maximum.at(largest, label, size)
        members = np.flatnonzero(singular[label])
        place = (np.cumsum(singular) - 1)[label[members]]
        value = np.exp(gain[members] - largest[label[members]])
        if not np.iscomplexobj(head_map) and not np.iscomplexobj(tail_map):
            value = value.real
        number = int(singular.sum())
        length = np.bincount(place, self._metric[members] * np.abs(value) ** 2, number)
        best = np.flatnonzero(size == largest[label])
        chosen = np.full(count, -1)
        chosen[label[best]] = best
        self._held = chosen[singular]
        value = value / np.sqrt(length)[place]
        return scipy.sparse.coo_array((value, (members, place)), (n, number)).tocsr()


def _gains(
    head: np.ndarray,
    tail: np.ndarray,
    head_map: np.ndarray,
    tail_map: np.ndarray,
    label: np.ndarray,
    count: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the gains along a spanning tree of each component, and depths in it."""
    n = label.size
    # One more vertex, next to one of each component, makes one tree of all.
    first = np.full(count, n)
    np.minimum.at(first, label, np.arange(n))
    row, column = np.append(head, np.full(count, n)), np.append(tail, first)
    joined = scipy.sparse.coo_array((np.ones(row.size), (row, column)), (n + 1, n + 1)).tocsr()
    _, above = scipy.sparse.csgraph.breadth_first_order(joined, n, directed=False)
    above = np.where(above < 0, n, above)
    gain = np.zeros(n + 1, dtype=np.complex128)
    depth = np.ones(n + 1)
    depth[n] = 0
    child = np.flatnonzero(above[:n] < n)
    parent = above[child]
    key = np.minimum(head, tail) * (n + 1) + np.maximum(head, tail)
    keys, some = np.unique(key, return_index=True)
    wanted = np.minimum(child, parent) * (n + 1) + np.maximum(child, parent)
    edge = some[np.searchsorted(keys, wanted)]
    along = _log(head_map[edge]) - _log(tail_map[edge])
    gain[child] = np.where(tail[edge] == child, along, -along)
    # Every vertex looks twice as far up each time.
    while (above != n).any():
        gain += gain[above]
        depth += depth[above]
        above = above[above]
    return gain[:n], depth[:n]


def _log(values: np.ndarray) -> np.ndarray:
    return np.log(values.astype(np.complex128))
