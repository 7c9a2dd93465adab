import torch
from torch import Tensor

from sheafprop.kernels.coupling import CouplingEntries
from sheafprop.kernels.csr_product import CSRProduct


class DenseCoupling:
    r"""Messages of dense maps, :math:`y_v = \sum_e w_e R_i^* R_j x_u`, without a matrix per edge.

    Every distinct (source vertex, relation, side) is mapped to its edge stalk once, a sparse
    product adds what the same (destination vertex, relation, side) receives, and only the sums are
    mapped back: one matrix product per relation and side, over distinct pairs instead of edges.

    Args:
        entries (CouplingEntries): Who sends to whom.
        head, tail (Tensor): Restriction maps ``[R, k, d]``.
    """

    def __init__(self, entries: CouplingEntries, head: Tensor, tail: Tensor):
        num_relations = head.shape[0]
        # A message into the tail leaves through the head's map, and the other way round.
        send = entries.relation + entries.backward * num_relations
        self._num_dst = entries.num_dst
        self._out_maps, self._in_maps = (head, tail), (tail, head)
        source, source_of = _distinct(send, entries.src, entries.num_src)
        target, target_of = _distinct(send, entries.dst, entries.num_dst)
        self._source_groups = _groups(source, entries.num_src, num_relations)
        self._target_groups = _groups(target, entries.num_dst, num_relations)
        self._source_vertex = source % max(entries.num_src, 1)
        self._target_vertex = target % max(entries.num_dst, 1)
        self._mix = CSRProduct(target_of, source_of, entries.weight, target.numel(), source.numel())
        ones = entries.weight.new_ones(target.numel())
        self._gather = CSRProduct(
            self._target_vertex,
            torch.arange(target.numel(), device=target.device),
            ones,
            entries.num_dst,
            target.numel(),
        )

    def __call__(self, x: Tensor) -> Tensor:
        if not self._source_groups:
            return x.new_zeros(self._num_dst, *x.shape[1:])
        sent = torch.cat(
            [
                x[self._source_vertex[part]] @ self._out_maps[backward][relation].mT
                for relation, backward, part in self._source_groups
            ]
        )
        received = self._mix(sent)
        mapped = torch.cat(
            [
                received[part] @ self._in_maps[backward][relation].conj()
                for relation, backward, part in self._target_groups
            ]
        )
        return self._gather(mapped)


def _distinct(send: Tensor, vertex: Tensor, num_vertices: int) -> tuple[Tensor, Tensor]:
    return torch.unique(send * max(num_vertices, 1) + vertex, return_inverse=True)


def _groups(keys: Tensor, num_vertices: int, num_relations: int) -> list[tuple[int, int, slice]]:
    """Runs of equal (relation, direction) in sorted keys: (relation, direction, slice)."""
    kinds = torch.div(keys, max(num_vertices, 1), rounding_mode="floor")
    present, counts = torch.unique_consecutive(kinds, return_counts=True)
    groups, start = [], 0
    for kind, count in zip(present.tolist(), counts.tolist(), strict=True):
        groups.append((kind % num_relations, kind // num_relations, slice(start, start + count)))
        start += count
    return groups
