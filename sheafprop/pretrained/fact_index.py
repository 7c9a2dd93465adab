"""The facts of a model, looked up by their ends or as queries ask for them, in memory or mapped."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from sheafprop.errors import FormatError
from sheafprop.kernels.threads import small_operations
from sheafprop.kge.base import Side
from sheafprop.pretrained.blocks import Numbering, append_block
from sheafprop.pretrained.tensor_file import StoredFile, TensorFile, smallest_integers
from sheafprop.query import GraphExecutor

_ENDS: tuple[Side, Side] = ("head", "tail")
_COLUMN = {"head": 0, "tail": 2}
_INTEGERS = (torch.int32, torch.int64)
# Facts that are translated at once.
_STEP = 2**20


class Neighbours(NamedTuple):
    """The facts of a block by the entity at one end (CSR of those rows that are not empty).

    ``entity[i]`` has the facts ``fact[start[i] : start[i + 1]]``, by relation, equal ones in their
    order.
    """

    entity: Tensor
    start: Tensor
    fact: Tensor


class FactBlock:
    """Facts with their neighbour lists at both ends, which are made when first asked for.

    Args:
        triples (Tensor): ``(head, relation, tail)``, int32 or int64, ``[m, 3]``.
        lists (dict, optional): The neighbour lists by end, where they are there.
        file (StoredFile, optional): What they are mapped from.
        limits (tuple, optional): Numbers of entities and relations, for facts from a file whose
            content was not checked: what is read is.
    """

    def __init__(
        self,
        triples: Tensor,
        lists: dict[Side, Neighbours] | None = None,
        file: StoredFile | None = None,
        limits: tuple[int, int] | None = None,
    ):
        self.triples, self.file, self._limits = triples, file, limits
        if lists is not None:
            self.head, self.tail = lists["head"], lists["tail"]

    @cached_property
    def head(self) -> Neighbours:
        """The lists of the heads."""
        return self._sorted("head")

    @cached_property
    def tail(self) -> Neighbours:
        """The lists of the tails."""
        return self._sorted("tail")

    def _sorted(self, end: Side) -> Neighbours:
        entity, relation = self.triples[:, _COLUMN[end]].long(), self.triples[:, 1].long()
        width = int(relation.max()) + 1 if len(relation) else 1
        code, fact = torch.sort(entity * width + relation, stable=True)
        entity, count = torch.unique_consecutive(code // width, return_counts=True)
        start = torch.cat([count.new_zeros(1), count.cumsum(0)])
        kind = smallest_integers(len(fact))
        return Neighbours(entity.to(self.triples.dtype), start.to(kind), fact.to(kind))

    def between(
        self, end: Side, entity: Tensor, relation: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Positions of entities that have facts at an end, and these facts; of one relation each
        where ``relation`` is given."""
        near = self.head if end == "head" else self.tail
        size = len(near.entity)
        if not size or not len(entity):
            none = torch.zeros(0, dtype=torch.int64)
            return none, none
        key = entity.to(near.entity.dtype).contiguous()
        # Torch would share even a few keys between threads.
        with small_operations(len(key)):
            place = torch.searchsorted(near.entity, key).clamp(max=size - 1)
        known = near.entity[place] == key
        first = torch.where(known, near.start[place], 0).long()
        last = torch.where(known, near.start[place + 1], 0).long()
        # Before anything of their size is allocated; of a file, they are what a stranger wrote.
        self._refuse((first < 0) | (last < first) | (last > len(near.fact)), "its neighbour lists")
        if relation is not None:
            first = self._bound(near, first, last, relation)
            last = self._bound(near, first, last, relation + 1)
        count = last - first
        with small_operations(len(count)):
            row = torch.repeat_interleave(count)
        offset = torch.cumsum(count, 0) - count
        fact = near.fact[first[row] + torch.arange(len(row)) - offset[row]].long()
        self._refuse((fact < 0) | (fact >= len(self.triples)), "its neighbour lists")
        return row, fact

    def _bound(self, near: Neighbours, low: Tensor, high: Tensor, relation: Tensor) -> Tensor:
        """The first place in each list whose relation is not below one, by bisection."""
        most = len(near.fact) - 1
        while bool((low < high).any()):
            middle = (low + high) // 2
            fact = near.fact[middle.clamp(max=most)].long()
            self._refuse((fact < 0) | (fact >= len(self.triples)), "its neighbour lists")
            found = self.triples[fact, 1]
            below = (low < high) & (found < relation)
            low = torch.where(below, middle + 1, low)
            high = torch.where(below, high, torch.maximum(low, middle.minimum(high)))
        return low

    def take(self, index: Tensor | slice) -> Tensor:
        """Some of the facts, int64.

        Raises:
            FormatError: If one from a file names what is not there.
        """
        found = self.triples[index].long()
        if self._limits is not None and len(found):
            entities, relations = self._limits
            limit = torch.tensor([entities, relations, entities])
            self._refuse((found < 0) | (found >= limit), "ids in its facts")
        return found

    def _refuse(self, wrong: Tensor, what: str) -> None:
        """Refuses a file that holds what is wrong; facts that were made here do not."""
        if self.file is not None and bool(wrong.any()):
            raise FormatError(
                f"'{self.file.path}' is refused: {what} are out of range; copy or write the model "
                "folder again."
            )

    def tensors(self) -> dict[str, Tensor]:
        """What a file of these facts holds."""
        out = {"triples": self.triples}
        for end in _ENDS:
            lists = self.head if end == "head" else self.tail
            out |= {f"by_{end}.{name}": value for name, value in lists._asdict().items()}
        return out

    @classmethod
    def open(cls, file: TensorFile, stored: StoredFile, limits: tuple[int, int]) -> "FactBlock":
        """The mapped facts of a file.

        Raises:
            FormatError: If sizes do not fit.
        """
        triples = file.take("triples", dim=2, dtypes=_INTEGERS)
        lists: dict[Side, Neighbours] = {}
        fits = triples.shape[1] == 3
        for end in _ENDS:
            near = Neighbours(
                *(file.take(f"by_{end}.{n}", dim=1, dtypes=_INTEGERS) for n in Neighbours._fields)
            )
            lists[end] = near
            fits &= len(near.start) == len(near.entity) + 1 and len(near.fact) == len(triples)
            # The ends alone: the rest is looked at where it is used.
            fits = fits and int(near.start[0]) == 0 and int(near.start[-1]) == len(triples)
            fits = fits and near.entity.dtype == triples.dtype
        if not fits:
            raise FormatError(
                f"'{stored.path}' is refused: the sizes of its lists do not fit its facts."
            )
        return cls(triples, lists, stored, limits)

    def check(self) -> None:
        """Reads all facts and lists.

        Raises:
            FormatError: If facts are out of range, or the lists are not theirs.
        """
        self.take(slice(None))
        again = FactBlock(self.triples)
        for end in _ENDS:
            pairs = zip(getattr(self, end), getattr(again, end), strict=True)
            same = all(torch.equal(a.long(), b.long()) for a, b in pairs)
            self._refuse(torch.tensor(not same), "its neighbour lists")

    def __len__(self) -> int:
        return len(self.triples)


class FactIndex:
    r"""Facts that are looked up by their ends.

    Adding facts gives a new index that shares the blocks of the old one, and so does removing
    entities with their facts.

    Args:
        facts (Tensor or FactBlock): Triples ``(head, relation, tail)``, ``[m, 3]``.
        more (FactBlock): Facts that came later.
    """

    def __init__(self, facts: Tensor | FactBlock, *more: FactBlock):
        first = FactBlock(facts) if isinstance(facts, Tensor) else facts
        self.blocks: list[FactBlock] = [first, *more]
        self._entities, self._lost = Numbering(), Numbering()

    def _with(
        self, blocks: Sequence[FactBlock], entities: Numbering, lost: Numbering
    ) -> "FactIndex":
        other = FactIndex(*blocks)
        other._entities, other._lost = entities, lost
        return other

    def append(self, facts: Tensor) -> "FactIndex":
        """An index with more facts after the old ones."""
        facts = facts.clone()
        facts[:, [0, 2]] = self._entities.old(facts[:, [0, 2]])
        blocks = append_block(
            self.blocks,
            FactBlock(facts),
            len,
            lambda old, new: FactBlock(torch.cat([old.take(slice(None)), new.triples])),
        )
        return self._with(blocks, self._entities, self._lost)

    def without(self, entities: Tensor) -> "FactIndex":
        """An index without some entities, whose numbers move up, and without their facts."""
        gone, offset, lost = self._entities.old(entities), 0, []
        for block in self.blocks:
            lost += [block.between(end, gone)[1] + offset for end in _ENDS]
            offset += len(block)
        return self._with(
            self.blocks, self._entities.remove(gone), self._lost.remove(torch.cat(lost))
        )

    @property
    def is_whole(self) -> bool:
        """Whether no entity was removed, so that blocks are as their files have them."""
        return not len(self._entities)

    def count_before(self, number: int) -> int:
        """How many facts are left of the first ``number`` that there were."""
        return number - len(self._lost.within(0, number))

    def chunks(self, start: int = 0, size: int = _STEP) -> Iterator[Tensor]:
        """All facts from a number on, in their order, int64 ``[n, 3]`` with ``n <= size``."""
        first, offset = int(self._lost.old(torch.tensor(start))), 0
        for block in self.blocks:
            for begin in range(max(0, first - offset), len(block), size):
                found = block.take(slice(begin, begin + size))
                found = self._renumber(self._lost.keep(found, offset + begin))
                if len(found):
                    yield found
            offset += len(block)

    def one(self, number: int) -> Tensor:
        """The fact of a number, ``[1, 3]``."""
        return next(self.chunks(number, 1))

    def from_row(self, start: int) -> Tensor:
        """All facts from a number on; a copy only if they are not in one tensor already."""
        if len(self.blocks) == 1 and self.is_whole:
            return self.blocks[0].take(slice(start, None))
        parts = list(self.chunks(start))
        return torch.cat(parts) if parts else torch.zeros(0, 3, dtype=torch.int64)

    def answers(self, side: Side, entity: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """What facts name at a side of relations, the entities at the other side being given.

        Args:
            side (str): ``"tail"`` or ``"head"``: the side that is asked for.
            entity, relation (Tensor): One of each for every query, ``[B]``.

        Returns:
            Positions of queries and entities, ``[p]`` each; repeated facts repeat them.
        """
        given: Side = "head" if side == "tail" else "tail"
        known = self._entities.old(entity)
        rows, found, offset = [], [], 0
        for block in self.blocks:
            row, fact = block.between(given, known, relation)
            here = self._lost.new(fact + offset) >= 0
            rows.append(row[here])
            found.append(self._entities.new(block.take(fact[here])[:, _COLUMN[side]]))
            offset += len(block)
        return torch.cat(rows), torch.cat(found)

    def contain(self, triples: Tensor) -> Tensor:
        """Whether triples ``[n, 3]`` are facts, bool ``[n]``."""
        found = torch.zeros(len(triples), dtype=torch.bool)
        row, tail = self.answers("tail", triples[:, 0], triples[:, 1])
        found[row[tail == triples[row, 2]]] = True
        return found

    def at(self, entities: Tensor) -> Tensor:
        """The facts with one of some entities at an end, ``[m, 3]``, in the order they came."""
        ids, parts, offset = self._entities.old(entities), [], 0
        for block in self.blocks:
            fact = torch.unique(torch.cat([block.between(end, ids)[1] for end in _ENDS]))
            here = self._lost.new(fact + offset) >= 0
            parts.append(self._renumber(block.take(fact[here])))
            offset += len(block)
        return torch.cat(parts)

    def _renumber(self, facts: Tensor) -> Tensor:
        if len(self._entities):
            facts = facts.clone()
            facts[:, [0, 2]] = self._entities.new(facts[:, [0, 2]])
        return facts

    def __len__(self) -> int:
        return sum(map(len, self.blocks)) - len(self._lost)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} facts)"


class FactAnswers:
    """What facts lead to by entity and relation, for :class:`~sheafprop.query.LinkProbabilities`.

    Args:
        facts (FactIndex): The facts.
    """

    def __init__(self, facts: FactIndex):
        self._facts = facts

    def tails(self, head_index: Tensor, rel_type: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct pairs of a position and a tail, by position."""
        return self._distinct("tail", head_index, rel_type)

    def heads(self, rel_type: Tensor, tail_index: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct pairs of a position and a head, by position."""
        return self._distinct("head", tail_index, rel_type)

    def _distinct(self, side: Side, entity: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.stack(self._facts.answers(side, entity, relation), dim=1)
        row, found = torch.unique(pairs, dim=0).unbind(1)
        return row, found


class FactExecutor(GraphExecutor):
    """The answers to queries that follow from a model's facts alone.

    Args:
        facts (FactIndex): The facts.
        num_entities (int): The number of entities.
        num_relations (int): The number of relations.
    """

    def __init__(self, facts: FactIndex, num_entities: int, num_relations: int):
        self.num_entities, self.num_relations = num_entities, num_relations
        self.domain = np.arange(num_entities, dtype=np.int32)
        self._facts = facts

    def _walk(
        self, row: NDArray, relation: NDArray[np.int64], source: NDArray, count: int
    ) -> csr_array:
        place, target = _walk(self._facts, self.num_relations, source, relation)
        entries = np.ones(len(target), dtype=bool), (row[place], target)
        return csr_array(entries, shape=(count, self.num_entities))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self._facts)} triples, num_entities={self.num_entities}, "
            f"num_relations={self.num_relations})"
        )


def _walk(
    facts: FactIndex, num_relations: int, sources: NDArray, relations: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of sources, and where the relation of each, below :math:`2R`, leads to."""
    ids = torch.from_numpy(sources.astype(np.int64))
    inverse = torch.from_numpy(relations >= num_relations)
    kinds = torch.from_numpy(relations.astype(np.int64)) % num_relations
    places, targets = [], []
    sides: tuple[tuple[Side, bool], ...] = (("tail", False), ("head", True))
    for side, is_inverse in sides:
        own = (inverse == is_inverse).nonzero().flatten()
        place, target = facts.answers(side, ids[own], kinds[own])
        places.append(own[place])
        targets.append(target)
    return torch.cat(places).numpy(), torch.cat(targets).numpy()
