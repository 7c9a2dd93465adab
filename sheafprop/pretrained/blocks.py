"""Labels, vectors and facts of a model in blocks, so that adding copies little more than is new.

The first block is never copied. Later ones are merged when they are of about equal size.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from sheafprop.data import Vocabulary
from sheafprop.data.triples import LABEL, as_label
from sheafprop.kge.base import Side

Block = TypeVar("Block")


def append_block(
    blocks: Sequence[Block],
    block: Block,
    size: Callable[[Block], int],
    merge: Callable[[Block, Block], Block],
) -> list[Block]:
    """The blocks with one more, merged with those before it that are no larger."""
    blocks = list(blocks)
    while len(blocks) > 1 and size(block) >= size(blocks[-1]):
        block = merge(blocks.pop(), block)
    return [*blocks, block] if size(block) else blocks


class EntityIndex:
    r"""Labels and origins of a model's entities; adding gives a new index.

    Args:
        entities (Vocabulary): Labels of the first entities.
        origins (sequence of str): Where the vector of each comes from.
    """

    def __init__(self, entities: Vocabulary, origins: Sequence[str]):
        self._blocks: list[tuple[Vocabulary, Sequence[str]]] = [(entities, origins)]

    @classmethod
    def _of(cls, blocks: list[tuple[Vocabulary, Sequence[str]]]) -> "EntityIndex":
        index = object.__new__(cls)
        index._blocks = blocks
        return index

    def lookup(self, labels: Iterable[str]) -> Tensor:
        """Ids of labels, -1 for unknown ones, ``[n]``."""
        labels = list(labels)
        ids = self._blocks[0][0].lookup(labels)
        offset = len(self._blocks[0][0])
        for vocabulary, _ in self._blocks[1:]:
            missing = (ids < 0).nonzero().flatten()
            found = vocabulary.lookup(labels[i] for i in missing.tolist())
            ids[missing] = torch.where(found < 0, -1, found + offset)
            offset += len(vocabulary)
        return ids

    def ids(self, labels: Iterable[str]) -> Tensor:
        """Ids of labels, ``[n]``.

        Raises:
            DataError: If labels are unknown; names the first with the nearest spelling.
        """
        given = [labels] if isinstance(labels, LABEL) else labels
        labels = [as_label(label, "a label of an entity") for label in given]
        ids = self.lookup(labels)
        if bool((ids < 0).any()):
            # Only now, to name what is near in all blocks.
            self.vocabulary().ids(labels)
        return ids

    def labels_of(self, ids: Tensor) -> list[str]:
        """Labels of ids."""
        return [self._entry(i)[0] for i in ids.flatten().tolist()]

    def origins_of(self, ids: Tensor) -> list[str]:
        """Origins of ids."""
        return [self._entry(i)[1] for i in ids.flatten().tolist()]

    def _entry(self, number: int) -> tuple[str, str]:
        for vocabulary, origins in self._blocks:
            if number < len(vocabulary):
                return vocabulary.labels[number], origins[number]
            number -= len(vocabulary)
        raise IndexError(number)

    def add(self, labels: Sequence[str], origins: Sequence[str]) -> "EntityIndex":
        """An index with new labels after the old ones."""
        block = (Vocabulary(labels, kind="entities"), tuple(origins))
        return self._of(
            append_block(
                self._blocks,
                block,
                size=lambda block: len(block[0]),
                merge=lambda old, new: (old[0].extend(new[0].labels), (*old[1], *new[1])),
            )
        )

    def with_origins(self, origins: Mapping[int, str]) -> "EntityIndex":
        """An index of the same labels in which some ids have other origins."""
        blocks, offset = [], 0
        for vocabulary, old in self._blocks:
            end = offset + len(vocabulary)
            new = {id - offset: origin for id, origin in origins.items() if offset <= id < end}
            if new:
                names = list(old)
                for number, origin in new.items():
                    names[number] = origin
                old = names
            blocks.append((vocabulary, old))
            offset = end
        return self._of(blocks)

    def vocabulary(self) -> Vocabulary:
        """All labels in one vocabulary; made anew if there are several blocks."""
        if len(self._blocks) == 1:
            return self._blocks[0][0]
        return Vocabulary((label for v, _ in self._blocks for label in v.labels), kind="entities")

    def origins(self) -> tuple[str, ...]:
        """Origins of all entities."""
        return tuple(origin for _, origins in self._blocks for origin in origins)

    def __len__(self) -> int:
        return sum(len(vocabulary) for vocabulary, _ in self._blocks)

    def __contains__(self, label: object) -> bool:
        return any(label in vocabulary for vocabulary, _ in self._blocks)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} entities)"


class RowBlocks:
    r"""Rows in several tensors.

    Args:
        blocks (list of Tensor): ``[n_i, ...]`` each; second dimensions (sections) of one are
            stretched where blocks with several are merged.
    """

    def __init__(self, blocks: list[Tensor]):
        self.blocks = blocks

    def append(self, rows: Tensor) -> "RowBlocks":
        """Blocks with more rows at the end."""
        return RowBlocks(append_block(self.blocks, rows, len, lambda *parts: _cat(parts)))

    def select(self, index: Tensor) -> Tensor:
        """Rows of an index, ``[n, ...]``."""
        parts, positions, offset = [], [], 0
        for block in self.blocks:
            inside = ((index >= offset) & (index < offset + len(block))).nonzero().flatten()
            if inside.numel():
                parts.append(block[index[inside] - offset])
                positions.append(inside)
            offset += len(block)
        if not parts:
            return self.blocks[0][:0]
        order = torch.cat(positions)
        rows = _cat(parts)
        return torch.empty_like(rows).index_copy_(0, order, rows)

    def from_row(self, start: int) -> Tensor:
        """All rows from one on; a copy only if they lie in several blocks."""
        parts, offset = [], 0
        for block in self.blocks:
            parts.append(block[max(0, start - offset) :])
            offset += len(block)
        return _cat([part for part in parts if len(part)] or parts[:1])

    def __len__(self) -> int:
        return sum(map(len, self.blocks))


def _cat(parts: Sequence[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    if parts[0].dim() == 3:
        sections = max(part.shape[1] for part in parts)
        parts = [part.expand(-1, sections, -1) for part in parts]
    return torch.cat(list(parts))


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
        self._blocks = [_FactBlock(facts, num_relations)]

    def append(self, facts: Tensor) -> "FactIndex":
        """An index with more facts after the old ones."""
        grown = object.__new__(FactIndex)
        grown.num_relations = self.num_relations
        grown._rows = self._rows.append(facts)
        rows = grown._rows.blocks
        kept = [old for old, block in zip(self._blocks, rows, strict=False) if old.facts is block]
        new = [_FactBlock(block, self.num_relations) for block in rows[len(kept) :]]
        grown._blocks = kept + new
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


class _FactBlock:
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
