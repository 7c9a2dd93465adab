"""Holds the known true triples that a filtered ranking excludes."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sheafprop.kernels.threads import small_operations

_INT64_MAX = 2**63 - 1


def check_ids(ids: Tensor, bound: int, what: str) -> None:
    """Raises ``ValueError`` unless ``ids`` is a vector of int64 ids below ``bound``."""
    if ids.dim() != 1 or ids.dtype != torch.long:
        raise ValueError(
            f"Expected {what} ids as an int64 vector (got shape {tuple(ids.shape)}, {ids.dtype})"
        )
    if ids.numel() == 0:
        return
    lowest, highest = (int(value) for value in torch.aminmax(ids))
    if lowest < 0 or highest >= bound:
        raise ValueError(
            f"Expected {what} ids from 0 to {bound - 1} (got {lowest if lowest < 0 else highest}, "
            f"but there are {bound})"
        )


def check_triples(triples: Tensor, num_nodes: int, num_relations: int) -> None:
    """Raises ``ValueError`` unless ``triples`` is an int64 ``[m, 3]`` tensor of ids in range."""
    if triples.dim() != 2 or triples.size(1) != 3:
        raise ValueError(f"Expected triples of shape [m, 3] (got {tuple(triples.shape)})")
    check_ids(triples[:, 0], num_nodes, "head entity")
    check_ids(triples[:, 1], num_relations, "relation")
    check_ids(triples[:, 2], num_nodes, "tail entity")


class GroupedValues:
    """The distinct values of every key, sorted: a multimap that answers whole batches at once."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        # Two stable sorts order the pairs without ever multiplying key and value (int64-safe).
        order = torch.argsort(values)
        order = order[torch.argsort(keys[order], stable=True)]
        keys, values = keys[order], values[order]
        distinct = torch.ones(keys.numel(), dtype=torch.bool, device=keys.device)
        distinct[1:] = (keys[1:] != keys[:-1]) | (values[1:] != values[:-1])
        self.values = values[distinct]
        self.keys, counts = torch.unique_consecutive(keys[distinct], return_counts=True)
        self.start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    def __call__(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the flat pairs (position in ``keys``, value)."""
        if self.keys.numel() == 0 or keys.numel() == 0:
            return keys.new_empty(0), keys.new_empty(0)
        # Torch would share even a few keys between threads.
        with small_operations(keys.numel()):
            position = torch.searchsorted(self.keys, keys).clamp_(max=self.keys.numel() - 1)
            counts = self.start[position + 1] - self.start[position]
            counts = torch.where(self.keys[position] == keys, counts, 0)
            row = torch.repeat_interleave(counts)
        first = self.start[position] - (counts.cumsum(0) - counts)
        return row, self.values[first[row] + torch.arange(row.numel(), device=row.device)]


class TripleFilter:
    r"""The known true triples of a graph, which a filtered ranking excludes from the candidates.

    For a query such as :math:`(h, r, ?)`, it returns all known tails. Triples are sorted once by
    query, and a batch of queries is a binary search; memory is linear in the number of triples and
    answers.

    Args:
        triples (torch.Tensor or Mapping[str, torch.Tensor]): The known triples of shape
            :obj:`[m, 3]`, or several named sets of them (*e.g.*, :obj:`"observed"`, :obj:`"valid"`
            and :obj:`"test"`; sets that are :obj:`None` are ignored). Repeated triples count once.
        num_nodes (int): The number of entities.
        num_relations (int): The number of relations.

    Raises:
        ValueError: If an id is out of range, or the number of queries exceeds int64.

    Shapes:
        - **tails:** head ids :math:`(B)`, relation ids :math:`(B)`
        - **heads:** relation ids :math:`(B)`, tail ids :math:`(B)`
        - **output:** positions in the batch :math:`(p)`, entity ids :math:`(p)`
    """

    def __init__(
        self, triples: Tensor | Mapping[str, Tensor | None], num_nodes: int, num_relations: int
    ) -> None:
        if num_nodes * num_relations > _INT64_MAX:
            raise ValueError(
                f"Expected at most {_INT64_MAX} pairs of an entity and a relation "
                f"(got {num_nodes} entities and {num_relations} relations)"
            )
        parts = {"known": triples} if isinstance(triples, Tensor) else triples
        known = {name: part for name, part in parts.items() if part is not None}
        for part in known.values():
            check_triples(part, num_nodes, num_relations)
        merged = torch.cat(
            [torch.empty(0, 3, dtype=torch.long), *(t.cpu() for t in known.values())]
        )

        self.num_nodes = num_nodes
        self.num_relations = num_relations
        self.composition = {name: part.size(0) for name, part in known.items()}
        head, relation, tail = merged.unbind(1)
        self._tails = GroupedValues(head * num_relations + relation, tail)
        self._heads = GroupedValues(tail * num_relations + relation, head)

    @property
    def num_triples(self) -> int:
        r"""The number of distinct triples."""
        return self._tails.values.numel()

    def tails(self, head_index: Tensor, rel_type: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the known tails of every query (:obj:`head_index`, :obj:`rel_type`, ?) as flat
        pairs of a position in the batch and an entity."""
        return self._look_up(self._tails, head_index, rel_type)

    def heads(self, rel_type: Tensor, tail_index: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the known heads of every query (?, :obj:`rel_type`, :obj:`tail_index`) as flat
        pairs of a position in the batch and an entity."""
        return self._look_up(self._heads, tail_index, rel_type)

    def _look_up(
        self, index: GroupedValues, entity: Tensor, relation: Tensor
    ) -> tuple[Tensor, Tensor]:
        if entity.shape != relation.shape:
            raise ValueError(
                f"Expected one relation per entity (got {tuple(entity.shape)} entities and "
                f"{tuple(relation.shape)} relations)"
            )
        check_ids(entity, self.num_nodes, "entity")
        check_ids(relation, self.num_relations, "relation")
        row, value = index((entity * self.num_relations + relation).cpu())
        return row.to(entity.device), value.to(entity.device)

    def describe(self) -> str:
        r"""Returns the composition of the filter in words, for the protocol box."""
        parts = ", ".join(f"{name} {count:,}" for name, count in self.composition.items())
        return f"{self.num_triples:,} known triples ({parts}), except the one being ranked"

    def __repr__(self) -> str:
        parts = "".join(f", {name}={count}" for name, count in self.composition.items())
        return (
            f"{self.__class__.__name__}({self.num_triples}, num_nodes={self.num_nodes}, "
            f"num_relations={self.num_relations}{parts})"
        )
