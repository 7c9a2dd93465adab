from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.backend import is_traced
from sheafprop.kernels.coupling import Coupling, CouplingEntries, needs_gradient
from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.kernels.memory import announce

# Groups of fewer rows are multiplied together, padded to a power of two.
_SMALL_GROUP = 32


@dataclass(frozen=True)
class _Bucket:
    """Groups of rows of equal (padded) length: rows ``start`` on, one map for each group."""

    start: int
    length: int
    kinds: Tensor

    @property
    def stop(self) -> int:
        return self.start + self.length * self.kinds.numel()


class _Stalks:
    """Rows for the distinct (vertex, relation, side) triples, grouped by relation and side."""

    def __init__(self, kind: Tensor, vertex: Tensor, num_vertices: int):
        keys, self.row_of = torch.unique(kind * max(num_vertices, 1) + vertex, return_inverse=True)
        kinds = torch.div(keys, max(num_vertices, 1), rounding_mode="floor")
        present, counts = torch.unique_consecutive(kinds, return_counts=True)
        lengths = 2 ** torch.ceil(torch.log2(counts.double())).long()
        lengths = torch.where(counts <= _SMALL_GROUP, lengths, counts)
        # Small groups first, those of one length together; a large group is a bucket of its own.
        order = torch.argsort(
            torch.where(lengths <= _SMALL_GROUP, lengths, _SMALL_GROUP + 1), stable=True
        )
        begin = torch.zeros_like(lengths)
        begin[order] = torch.cumsum(lengths[order], 0) - lengths[order]
        first = torch.cumsum(counts, 0) - counts
        place = torch.arange(keys.numel(), device=keys.device) + torch.repeat_interleave(
            begin - first, counts
        )
        self.num_rows = int(lengths.sum())
        self.row_of = place[self.row_of]
        #: Vertex of every row; padding repeats vertex 0 and is never read.
        self.vertex = torch.zeros(self.num_rows, dtype=torch.long, device=keys.device)
        self.vertex[place] = keys - kinds * max(num_vertices, 1)
        self.used = place
        self.buckets: list[_Bucket] = []
        sorted_lengths = lengths[order].tolist()
        start = i = 0
        while i < len(sorted_lengths):
            length, j = sorted_lengths[i], i + 1
            while (
                length <= _SMALL_GROUP and j < len(sorted_lengths) and sorted_lengths[j] == length
            ):
                j += 1
            bucket = _Bucket(start, length, present[order[i:j]])
            self.buckets.append(bucket)
            start, i = bucket.stop, j


class DenseCoupling(Coupling):
    r"""Messages of dense maps, :math:`y_v = \sum_e w_e R_i^* R_j x_u`, without a matrix per edge.

    Every distinct (source vertex, relation, side) is mapped to its edge stalk once, a sparse
    product adds what the same (destination vertex, relation, side) receives, and only the sums are
    mapped back: one matrix product per relation and side, over distinct pairs instead of edges.
    Relations with few rows share one batched product.

    Args:
        entries (CouplingEntries): Who sends to whom.
        head, tail (Tensor): Restriction maps ``[R, k, d]``; the same tensor for a shared map, which
            then counts as one side.
    """

    def __init__(self, entries: CouplingEntries, head: Tensor, tail: Tensor):
        num_relations, k, d = head.shape
        # A message into the tail leaves through the head's map, and the other way round.
        send, receive = entries.relation, entries.relation
        if head is tail:
            maps = head
        else:
            maps = torch.cat([head, tail])
            send = send + entries.backward * num_relations
            receive = receive + (1 - entries.backward) * num_relations
        source = _Stalks(send, entries.src, entries.num_src)
        target = _Stalks(receive, entries.dst, entries.num_dst)
        self._num_dst, self._widths = entries.num_dst, (k, d)
        self._source, self._target = source, target
        self._out_maps = [_select(maps, b.kinds).mT for b in source.buckets]
        self._in_maps = [_select(maps, b.kinds).conj() for b in target.buckets]
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
        if not self._source.buckets:
            return x.new_zeros(self._num_dst, *x.shape[1:])
        return self._gather(self.map_back(self._mix(self.map_out(x))))

    def map_out(self, x: Tensor) -> Tensor:
        """Source features to the edge stalks, ``[rows, s, k]``."""
        return _by_bucket(x, self._source, self._out_maps, self._widths[0], gather=True)

    def map_back(self, received: Tensor) -> Tensor:
        """Sums in the edge stalks to the vertex stalks, ``[rows, s, d]``."""
        return _by_bucket(received, self._target, self._in_maps, self._widths[1], gather=False)


def _select(maps: Tensor, kinds: Tensor) -> Tensor:
    # A view where one map suffices: large groups do not copy the parameters.
    return maps[kinds] if kinds.numel() > 1 else maps[int(kinds) : int(kinds) + 1]


def _by_bucket(x: Tensor, stalks: _Stalks, maps: list[Tensor], width: int, gather: bool) -> Tensor:
    sections = x.shape[1]
    dtype = torch.promote_types(x.dtype, maps[0].dtype)
    recorded = is_traced(x) or needs_gradient(x, *maps)
    out = None
    if not recorded:
        announce(stalks.num_rows * sections * width * dtype.itemsize, "features in the edge stalks")
        out = torch.empty(stalks.num_rows, sections, width, dtype=dtype, device=x.device)
    parts = []
    for bucket, matrices in zip(stalks.buckets, maps, strict=True):
        rows = slice(bucket.start, bucket.stop)
        features = x[stalks.vertex[rows]] if gather else x[rows]
        features = features.to(dtype).reshape(bucket.kinds.numel(), -1, x.shape[-1])
        matrices = matrices.to(dtype)
        if out is None:
            parts.append((features @ matrices).view(-1, sections, width))
        elif matrices.shape[0] == 1:
            torch.mm(features[0], matrices[0], out=out[rows].view(-1, width))
        else:
            torch.bmm(features, matrices, out=out[rows].view(matrices.shape[0], -1, width))
    return torch.cat(parts) if out is None else out
