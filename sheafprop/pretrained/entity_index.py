from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from sheafprop.data import Vocabulary
from sheafprop.data.triples import as_label


class EntityIndex:
    r"""Labels and origins of a model's entities, to which new ones can be added cheaply.

    Adding gives a new index and leaves the old one as it is. The first vocabulary is shared; what
    is added later lies in blocks that are merged when they are of about equal size, so that adding
    copies little more than what is new.

    Args:
        entities (Vocabulary): Labels of the first entities.
        origins (sequence of str): Where the vector of each comes from.
    """

    def __init__(self, entities: Vocabulary, origins: Sequence[str]):
        self._blocks: list[tuple[Vocabulary, Sequence[str]]] = [(entities, origins)]

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
        given = [labels] if isinstance(labels, str | int) else labels
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
        added = object.__new__(EntityIndex)
        blocks = list(self._blocks)
        block = (Vocabulary(labels, kind="entities"), tuple(origins))
        while len(blocks) > 1 and len(block[0]) >= len(blocks[-1][0]):
            vocabulary, earlier = blocks.pop()
            block = vocabulary.extend(block[0].labels), (*earlier, *block[1])
        added._blocks = [*blocks, block] if len(block[0]) else blocks
        return added

    def with_origins(self, origins: Mapping[int, str]) -> "EntityIndex":
        """An index of the same labels in which some ids have other origins."""
        changed = object.__new__(EntityIndex)
        changed._blocks, offset = [], 0
        for vocabulary, old in self._blocks:
            end = offset + len(vocabulary)
            new = {id - offset: origin for id, origin in origins.items() if offset <= id < end}
            if new:
                names = list(old)
                for number, origin in new.items():
                    names[number] = origin
                old = names
            changed._blocks.append((vocabulary, old))
            offset = end
        return changed

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
