from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of, is_traced, leave_inference_mode
from sheafprop.kernels.coupling import Coupling, CouplingEntries, needs_gradient
from sheafprop.kernels.csr_product import CSRProduct, Terms
from sheafprop.kernels.memory import announce, empty
from sheafprop.kernels.rows import take_rows
from sheafprop.kernels.threads import SpareMemory, run_chunks

# Rows multiplied by one map, padded to the next of these lengths so that maps share batched
# products: many small products in a row wait for each other's threads.
_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

# Bytes of rows gathered at once.
_GATHERED_BYTES = 2**20


@dataclass(frozen=True)
class _Bucket:
    """Groups of rows of equal (padded) length: rows ``start`` on, one map for each group."""

    start: int
    length: int
    kinds: Tensor

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.length * self.kinds.numel())


class _Stalks:
    """Rows for the distinct (vertex, relation, side) triples, grouped by relation and side.

    Args:
        kind (Tensor): Number of the map of each message ``[m]``.
        vertex (Tensor): Vertex of each message ``[m]``.
    """

    def __init__(self, kind: Tensor, vertex: Tensor, num_vertices: int):
        keys, pair = torch.unique(kind * max(num_vertices, 1) + vertex, return_inverse=True)
        kinds = torch.div(keys, max(num_vertices, 1), rounding_mode="floor")
        number = torch.arange(keys.numel(), device=keys.device)
        # Within a map, pieces of the greatest length.
        _, counts = torch.unique_consecutive(kinds, return_counts=True)
        within = number - torch.repeat_interleave(torch.cumsum(counts, 0) - counts, counts)
        opens = (within % _LENGTHS[-1] == 0).nonzero().flatten()
        sizes = torch.diff(opens, append=opens.new_tensor([keys.numel()]))
        allowed = torch.tensor(_LENGTHS, device=keys.device)
        lengths = allowed[torch.searchsorted(allowed, sizes)]
        order = torch.argsort(lengths, stable=True)
        begin = torch.zeros_like(lengths)
        begin[order] = torch.cumsum(lengths[order], 0) - lengths[order]
        place = number + torch.repeat_interleave(begin - opens, sizes)

        self.num_rows = int(lengths.sum())
        #: Row of each message, and the rows that are not padding.
        self.row_of, self.used = place[pair], place
        #: Vertex of every row; padding repeats a vertex and is never read.
        self.vertex = torch.zeros(self.num_rows, dtype=torch.long, device=keys.device)
        self.vertex[place] = keys - kinds * max(num_vertices, 1)
        self.buckets: list[_Bucket] = []
        start = first = 0
        present, groups = torch.unique_consecutive(lengths[order], return_counts=True)
        for length, count in zip(present.tolist(), groups.tolist(), strict=True):
            members = opens[order[first : first + count]]
            self.buckets.append(_Bucket(start, length, kinds[members]))
            start, first = start + length * count, first + count


class DenseCoupling(Coupling):
    r"""Messages of dense maps, :math:`y_v = \sum_e w_e R_i^* R_j x_u`, without a matrix per edge.

    Every distinct (source vertex, relation, side) is mapped to its edge stalk once, a sparse
    product adds what the same (destination vertex, relation, side) receives, and only the sums are
    mapped back: one matrix product per relation and side, over distinct pairs instead of edges.
    Relations with about as many rows share one
    batched product.

    Args:
        entries (CouplingEntries): Who sends to whom; one at least.
        head, tail (Tensor): Restriction maps ``[R, k, d]``; the same tensor for a shared map, which
            then counts as one side.
    """

    def __init__(self, entries: CouplingEntries, head: Tensor, tail: Tensor):
        num_relations, k, d = head.shape
        # A message into the tail leaves through the head's map, and the other way round.
        if head is tail:
            maps = head
            send = receive = entries.label % num_relations
        else:
            maps = torch.cat([head, tail])
            send = entries.label
            receive = (send + num_relations) % (2 * num_relations)
        source = _Stalks(send, entries.src, entries.num_src)
        target = _Stalks(receive, entries.dst, entries.num_dst)
        self._widths = k, d
        self._source, self._target = source, target
        self._out_maps = [take_rows(maps, 0, b.kinds).mT.contiguous() for b in source.buckets]
        self._in_maps = [take_rows(maps, 0, b.kinds).conj().resolve_conj() for b in target.buckets]
        self._spare: list[list[Tensor]] = []
        self._mix = CSRProduct(
            target.row_of, source.row_of, entries.weight, target.num_rows, source.num_rows
        )
        self._gather = CSRProduct(
            target.vertex[target.used],
            target.used,
            entries.weight.new_ones(target.used.numel()),
            entries.num_dst,
            target.num_rows,
        )

    @property
    def map_products(self) -> int:
        """Multiplications by a restriction map that one application makes, padding not counted."""
        return self._source.used.numel() + self._target.used.numel()

    def __call__(self, x: Tensor) -> Tensor:
        if backend_of(x) != "numba" or needs_gradient(x, *self._out_maps, *self._in_maps):
            return self._gather(self.map_back(self._mix(self.map_out(x))))
        x, (k, d) = x.to(torch.promote_types(x.dtype, self._out_maps[0].dtype)), self._widths
        source, target, sections = self._source.num_rows, self._target.num_rows, x.shape[1]
        sizes = sections * max(source * k, target * d), sections * target * k
        spare = self._spare.pop() if self._spare else []
        # The system takes as long to give fresh memory as the products take to fill it.
        if [(part.numel(), part.dtype) for part in spare] != [(size, x.dtype) for size in sizes]:
            announce(sum(sizes) * x.element_size(), "features in the edge stalks")
            with leave_inference_mode():
                spare = [empty((size,), x) for size in sizes]
        first, second = spare
        sent = self.map_out(x, first[: sections * source * k].view(source, sections, k))
        received = self._mix.combine(sent, Terms(out=second.view(target, sections, k)))
        out = self._gather(
            self.map_back(received, first[: sections * target * d].view(target, sections, d))
        )
        self._spare = [spare]
        return out

    def map_out(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Source features to the edge stalks, ``[rows, s, k]``; ``out`` may take them."""
        return _by_bucket(x, self._source, self._out_maps, self._widths[0], True, out)

    def map_back(self, received: Tensor, out: Tensor | None = None) -> Tensor:
        """Sums in the edge stalks to the vertex stalks, ``[rows, s, d]``, likewise."""
        return _by_bucket(received, self._target, self._in_maps, self._widths[1], False, out)


def _by_bucket(
    x: Tensor, stalks: _Stalks, maps: list[Tensor], width: int, gather: bool, out: Tensor | None
) -> Tensor:
    sections = x.shape[1]
    dtype = torch.promote_types(x.dtype, maps[0].dtype)
    x = x.to(dtype).reshape(x.shape[0], -1)
    recorded = is_traced(x) or needs_gradient(x, *maps)
    if recorded:
        parts = []
        for bucket, matrices in zip(stalks.buckets, maps, strict=True):
            features = take_rows(x, 0, stalks.vertex[bucket.rows]) if gather else x[bucket.rows]
            features = features.view(matrices.shape[0], -1, matrices.shape[1])
            parts.append((features @ matrices.to(dtype)).view(-1, sections, width))
        return torch.cat(parts)
    if out is None:
        announce(stalks.num_rows * sections * width * dtype.itemsize, "features in the edge stalks")
        out = empty((stalks.num_rows, sections, width), x)
    # Rows are multiplied while they are in the cache.
    fitting = max(1, _GATHERED_BYTES // max(1, x.shape[1] * x.element_size()))
    pieces = []
    for bucket, matrices in zip(stalks.buckets, maps, strict=True):
        groups = max(1, fitting // bucket.length)
        for first, some in enumerate(matrices.split(groups)):
            start = bucket.start + first * groups * bucket.length
            pieces.append((slice(start, start + some.shape[0] * bucket.length), some))

    most = max((rows.stop - rows.start for rows, _ in pieces), default=0)
    spare = SpareMemory(most * x.shape[1] if gather else 0, x)

    def multiply(piece: tuple[slice, Tensor]) -> None:
        rows, some = piece
        with spare.take(rows.stop - rows.start if gather else 0, x.shape[1]) as features:
            if gather:
                torch.index_select(x, 0, stalks.vertex[rows], out=features)
            torch.bmm(
                (features if gather else x[rows]).view(some.shape[0], -1, some.shape[1]),
                some.to(dtype),
                out=out[rows].view(some.shape[0], -1, width),
            )

    cost = x.shape[1] * width * stalks.num_rows
    run_chunks(multiply, pieces, cost if x.device.type == "cpu" else 0)
    return out
