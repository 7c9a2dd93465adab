"""Labels and origins of a model's entities, in memory or mapped."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sheafprop.data import Vocabulary
from sheafprop.data.label_checks import fold, lookalikes
from sheafprop.data.triples import LABEL, as_label
from sheafprop.data.vocabulary import MAX_SUGGESTION_LABELS, unknown_labels
from sheafprop.pretrained.blocks import Numbering, append_block
from sheafprop.pretrained.tensor_file import StoredFile

# Labels that are read at once.
_STEP = 2**16


class LabelBlock(Protocol):
    """Labels and origins of consecutive entities, numbered from zero."""

    file: StoredFile | None

    def lookup(self, labels: Sequence[str]) -> Tensor:
        """Numbers of labels, -1 for unknown ones, ``[n]``."""

    def labels(self, start: int, stop: int) -> Sequence[str]:
        """The labels from one number to another."""

    def origins(self, start: int, stop: int) -> Sequence[str]:
        """The origins from one number to another."""

    def find_folded(self, wanted: Collection[str]) -> Iterator[tuple[int, str]]:
        """Number and label of all that look like one of some folded texts, in their order."""

    def __len__(self) -> int: ...


class ListedLabels:
    """Labels and origins in memory.

    Args:
        vocabulary (Vocabulary): The labels.
        given (sequence of str): Their origins.
    """

    def __init__(self, vocabulary: Vocabulary, given: Sequence[str]):
        self.vocabulary, self._origins = vocabulary, given
        self.file: StoredFile | None = None

    def lookup(self, labels: Sequence[str]) -> Tensor:
        return self.vocabulary.lookup(labels)

    def labels(self, start: int, stop: int) -> Sequence[str]:
        return self.vocabulary.labels[start:stop]

    def origins(self, start: int, stop: int) -> Sequence[str]:
        return self._origins[start:stop]

    def find_folded(self, wanted: Collection[str]) -> Iterator[tuple[int, str]]:
        for number, label in enumerate(self.vocabulary.labels):
            if fold(label) in wanted:
                yield number, label

    def __len__(self) -> int:
        return len(self.vocabulary)


class EntityIndex:
    r"""Labels and origins of a model's entities; adding and removing gives a new index.

    Args:
        entities (Vocabulary): Labels of the first entities.
        origins (sequence of str): Where the vector of each comes from.
    """

    def __init__(self, entities: Vocabulary, origins: Sequence[str]):
        self.blocks: list[LabelBlock] = [ListedLabels(entities, origins)]
        self.numbering = Numbering()

    @classmethod
    def of(cls, blocks: list[LabelBlock], numbering: Numbering | None = None) -> "EntityIndex":
        """An index of blocks."""
        index = object.__new__(cls)
        index.blocks, index.numbering = blocks, numbering or Numbering()
        return index

    # Look-ups -------------------------------------------------------------------------------------

    def lookup(self, labels: Iterable[str]) -> Tensor:
        """Ids of labels, -1 for unknown ones, ``[n]``."""
        labels = [label if isinstance(label, str) else as_label(label) for label in labels]
        ids, offset = torch.full((len(labels),), -1), 0
        for block in self.blocks:
            missing = (ids < 0).nonzero().flatten()
            if not len(missing):
                break
            found = block.lookup([labels[i] for i in missing.tolist()])
            # What was removed may have come again in a later block.
            ids[missing] = self.numbering.new(torch.where(found < 0, -1, found + offset))
            offset += len(block)
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
            missing = [labels[i] for i in (ids < 0).nonzero().flatten().tolist()]
            raise unknown_labels(missing, len(self), "entities", self.suggestion)
        return ids

    def suggestion(self, label: str) -> str:
        """`` (did you mean 'x'?)`` for an unknown label, or nothing if none is near."""
        if len(self) <= MAX_SUGGESTION_LABELS:
            return self.vocabulary().suggestion(label)
        near = self._first_folded({fold(label)}).get(fold(label))
        return "" if near is None else f" (did you mean {near!r}?)"

    def lookalikes(self, start: int) -> dict[str, str]:
        """Labels from ``start`` on that may be meant to be an earlier one, with that one; see
        :func:`~sheafprop.data.label_checks.lookalikes`. Among many labels, numbers are not compared
        by their value."""
        if len(self) <= MAX_SUGGESTION_LABELS:
            return lookalikes(self.all_labels(), start)
        keys = {label: fold(label) for label in self.iterate(start)}
        first = self._first_folded(set(keys.values()))
        near = {label: first[key] for label, key in keys.items()}
        return {label: earlier for label, earlier in near.items() if earlier != label}

    def _first_folded(self, wanted: Collection[str]) -> dict[str, str]:
        """The first label that looks like each of some folded texts."""
        first: dict[str, str] = {}
        offset = 0
        for block in self.blocks:
            for number, label in block.find_folded(wanted):
                if int(self.numbering.new(torch.tensor(offset + number))) >= 0:
                    first.setdefault(fold(label), label)
            offset += len(block)
        return first

    def __getitem__(self, number: int, /) -> str:
        return self.labels_of([number])[0]

    def labels_of(self, ids: Tensor | Iterable[int]) -> list[str]:
        """Labels of ids."""
        return [block.labels(i, i + 1)[0] for block, i in self._places(ids)]

    def origins_of(self, ids: Tensor | Iterable[int]) -> list[str]:
        """Origins of ids."""
        return [block.origins(i, i + 1)[0] for block, i in self._places(ids)]

    def _places(self, ids: Tensor | Iterable[int]) -> Iterator[tuple[LabelBlock, int]]:
        numbers = torch.as_tensor(ids if isinstance(ids, Tensor) else list(ids)).long().flatten()
        for number in self.numbering.old(numbers).tolist():
            place = number
            for block in self.blocks:
                if 0 <= place < len(block):
                    yield block, place
                    break
                place -= len(block)
            else:
                raise IndexError(number)

    def iterate(self, start: int = 0) -> Iterator[str]:
        """All labels from an id on."""
        for block, begin, end, kept in self._slices(start):
            labels = block.labels(begin, end)
            yield from (labels if kept is None else [labels[i] for i in kept])

    def iterate_origins(self, start: int = 0) -> Iterator[str]:
        """All origins from an id on."""
        for block, begin, end, kept in self._slices(start):
            origins = block.origins(begin, end)
            yield from (origins if kept is None else [origins[i] for i in kept])

    def _slices(self, start: int) -> Iterator[tuple[LabelBlock, int, int, list[int] | None]]:
        """Parts of blocks, and what of them is left; None for all."""
        first, offset = int(self.numbering.old(torch.tensor(start))), 0
        for block in self.blocks:
            for begin in range(max(0, first - offset), len(block), _STEP):
                end = min(begin + _STEP, len(block))
                numbers = torch.arange(end - begin)
                kept = self.numbering.keep(numbers, offset + begin)
                yield block, begin, end, None if kept is numbers else kept.tolist()
            offset += len(block)

    # Changes --------------------------------------------------------------------------------------

    def add(self, labels: Sequence[str], origins: Sequence[str]) -> "EntityIndex":
        """An index with new labels after the old ones."""
        block: LabelBlock = ListedLabels(Vocabulary(labels, kind="entities"), tuple(origins))
        # A label may have been removed from a block and come again: such blocks stay apart.
        fixed = len(self.blocks) if len(self.numbering) else 1
        return self.of(append_block(self.blocks, block, len, _merge, fixed), self.numbering)

    def without(self, ids: Tensor) -> "EntityIndex":
        """An index without some labels, in which later ids move up."""
        return self.of(self.blocks, self.numbering.remove(self.numbering.old(ids)))

    def with_origins(self, origins: Mapping[int, str]) -> "EntityIndex":
        """An index of the same labels in which some ids have other origins."""
        old = self.numbering.old(torch.tensor(list(origins), dtype=torch.int64)).tolist()
        named = dict(zip(old, origins.values(), strict=True))
        blocks, offset = [], 0
        for block in self.blocks:
            end = offset + len(block)
            new = {id - offset: origin for id, origin in named.items() if offset <= id < end}
            if new:
                names = list(block.origins(0, len(block)))
                for number, origin in new.items():
                    names[number] = origin
                block = ListedLabels(_vocabulary(block), names)
            blocks.append(block)
            offset = end
        return self.of(blocks, self.numbering)

    # All of them ----------------------------------------------------------------------------------

    def all_labels(self) -> tuple[str, ...]:
        """The labels of all entities."""
        first = self.blocks[0]
        if len(self.blocks) == 1 and isinstance(first, ListedLabels) and not len(self.numbering):
            return first.vocabulary.labels
        return tuple(self.iterate())

    def vocabulary(self) -> Vocabulary:
        """All labels in one vocabulary; made anew if they are not in one already."""
        if len(self.blocks) == 1 and not len(self.numbering):
            return _vocabulary(self.blocks[0])
        return Vocabulary(self.iterate(), kind="entities")

    def origins(self) -> tuple[str, ...]:
        """Origins of all entities."""
        return tuple(self.iterate_origins())

    def __len__(self) -> int:
        return sum(map(len, self.blocks)) - len(self.numbering)

    def __contains__(self, label: object) -> bool:
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            return False
        return bool(self.lookup([as_label(label)])[0] >= 0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} entities)"


def _vocabulary(block: LabelBlock) -> Vocabulary:
    if isinstance(block, ListedLabels):
        return block.vocabulary
    return Vocabulary(block.labels(0, len(block)), kind="entities")


def _merge(old: LabelBlock, new: LabelBlock) -> LabelBlock:
    origins = [*old.origins(0, len(old)), *new.origins(0, len(new))]
    return ListedLabels(_vocabulary(old).extend(_vocabulary(new).labels), origins)
