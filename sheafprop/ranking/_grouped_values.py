from __future__ import annotations

import torch
from torch import Tensor

INT64_MAX = 2**63 - 1


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
        position = torch.searchsorted(self.keys, keys).clamp_(max=self.keys.numel() - 1)
        counts = self.start[position + 1] - self.start[position]
        counts = torch.where(self.keys[position] == keys, counts, 0)
        row = torch.repeat_interleave(counts)
        first = self.start[position] - (counts.cumsum(0) - counts)
        return row, self.values[first[row] + torch.arange(row.numel(), device=row.device)]
