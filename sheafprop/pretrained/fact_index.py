from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.kge.base import Side
from sheafprop.pretrained.row_blocks import RowBlocks


class FactIndex:
    r"""Facts that are looked up by their ends; each block is sorted once, when first asked.

    Adding facts gives a new index that shares the sorted blocks of the old one.

    Args:
        facts (Tensor): Triples ``(head, relation, tail)``, ``[m, 3]``.
        num_relations (int): The number of relations.
    """

    def __init__(self, facts: Tensor, num_relations: int):
        self.num_relations = num_relations
        self._rows = RowBlocks([facts])
        self._blocks = [_Block(facts, num_relations)]

    def append(self, facts: Tensor) -> "FactIndex":
        """An index with more facts after the old ones."""
        grown = object.__new__(FactIndex)
        grown.num_relations = self.num_relations
        grown._rows = self._rows.append(facts)
        rows = grown._rows.blocks
        kept = [old for old, block in zip(self._blocks, rows, strict=False) if old.facts is block]
        grown._blocks = kept + [_Block(block, self.num_relations) for block in rows[len(kept) :]]
        return grown

    def from_row(self, start: int) -> Tensor:
        """All facts from a number on; a copy only if they lie in several blocks."""
        return self._rows.from_row(start)

    def answers(self, side: Side, entity: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """What facts name at a side of relations, the entities at the other side being given.

        Args:
            side (str): ``"tail"`` or ``"head"``: the side that is asked for.
            entity, relation (Tensor): One of each for every query, ``[B]``.

        Returns:
            Positions of queries and entities, ``[p]`` each; repeated facts repeat them.
        """
        given: Side = "head" if side == "tail" else "tail"
        code = entity * self.num_relations + relation
        parts = []
        for block in self._blocks:
            query, found = block.between(given, code, code + 1)
            parts.append((query, block.facts[found, 2 if side == "tail" else 0]))
        rows, entities = zip(*parts, strict=True)
        return torch.cat(rows), torch.cat(entities)

    def contain(self, triples: Tensor) -> Tensor:
        """Whether triples ``[n, 3]`` are facts, bool ``[n]``."""
        found = torch.zeros(len(triples), dtype=torch.bool)
        row, tail = self.answers("tail", triples[:, 0], triples[:, 1])
        found[row[tail == triples[row, 2]]] = True
        return found

    def at(self, entities: Tensor) -> Tensor:
        """The facts with one of some entities at an end, ``[m, 3]``, in the order they came."""
        low = entities * self.num_relations
        parts = []
        for block in self._blocks:
            ends = [block.between(side, low, low + self.num_relations)[1] for side in _ENDS]
            parts.append(block.facts[torch.unique(torch.cat(ends))])
        return torch.cat(parts)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} facts)"


_ENDS: tuple[Side, Side] = ("head", "tail")


class _Sorted(NamedTuple):
    code: Tensor
    order: Tensor


class _Block:
    """Facts with their order by (head, relation) and by (tail, relation)."""

    def __init__(self, facts: Tensor, num_relations: int):
        self.facts, self.num_relations = facts, num_relations

    @cached_property
    def head(self) -> _Sorted:
        return self._sorted(0)

    @cached_property
    def tail(self) -> _Sorted:
        return self._sorted(2)

    def _sorted(self, column: int) -> _Sorted:
        code = self.facts[:, column] * self.num_relations + self.facts[:, 1]
        return _Sorted(*torch.sort(code, stable=True))

    def between(self, end: Side, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of ranges ``[low, high)`` of codes, and of the facts in them."""
        code, order = self.head if end == "head" else self.tail
        first, last = torch.searchsorted(code, low), torch.searchsorted(code, high)
        count = last - first
        row = torch.repeat_interleave(count)
        offset = torch.cumsum(count, 0) - count
        return row, order[first[row] + torch.arange(len(row)) - offset[row]]
