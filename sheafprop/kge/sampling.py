from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.seeding import combine_keys, seeded_integers

# Random proposals for a negative that must not be a known triple; after them all entities are
# looked through, so that a side with few or no false candidates is no endless search.
_NUM_PROPOSALS = 16
_BLOCK_ELEMENTS = 2**22


class NegativeSampler:
    r"""Seeded negative triples: the head or the tail of a triple replaced by another entity.

    Every negative is a function of the seed, the epoch, the index of its triple in the training
    set, and its number. It does not depend on the other triples of the batch, on their order or on
    how many processes share them.
    The replacement is uniform over all entities but the replaced one, or over those that do not
    give a known triple.

    Args:
        num_nodes (int): The number of entities, at least 2.
        num_relations (int): The number of relations.
        num_negatives (int): The number :math:`n` of negatives for each triple.
        seed (int): The seed.
        sides (str, optional): Which end is replaced: :obj:`"head"`, :obj:`"tail"`, or in each epoch
            one of them for all negatives of a triple, with equal probability (:obj:`"both"`), so
            that weights among them compare answers to one question. (default: :obj:`"both"`)
        known_triples (torch.Tensor, optional): Triples :math:`(h, r, t)` that are never drawn as
            negatives. If one side of a triple has no other candidate, the other side is replaced.
            (default: :obj:`None`)

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        num_nodes: int,
        num_relations: int,
        num_negatives: int,
        *,
        seed: int,
        sides: Literal["both", "head", "tail"] = "both",
        known_triples: Tensor | None = None,
    ) -> None:
        check_integer("num_relations", num_relations, 1)
        check_integer("num_negatives", num_negatives, 1)
        if num_nodes < 2:
            raise ValueError(f"A negative needs another entity: 'num_nodes' >= 2 (got {num_nodes})")
        if sides not in ("both", "head", "tail"):
            raise ValueError(f"'sides' needs to be 'both', 'head' or 'tail' (got {sides!r})")
        if known_triples is not None and num_nodes**2 * num_relations >= 2**63:
            raise ValueError(
                "Known triples cannot be numbered in 64 bits: num_nodes^2 * num_relations must "
                f"stay below 2^63 (got num_nodes={num_nodes}, num_relations={num_relations}); "
                "sample without 'known_triples'"
            )
        self.num_nodes = num_nodes
        self.num_relations = num_relations
        self.num_negatives = num_negatives
        self.seed = seed
        self.sides = sides
        self._known: NDArray[np.int64] | None = None
        if known_triples is not None:
            head, relation, tail = known_triples.cpu().numpy().T
            self._known = np.unique(self._codes(head, relation, tail))

    def __call__(
        self, triples: Tensor, triple_index: Tensor, epoch: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""Returns the heads, relations and tails of the negatives.

        Args:
            triples (torch.Tensor): The positive triples :math:`(h, r, t)`.
            triple_index (torch.Tensor): Their indices in the training set.
            epoch (int): The epoch.

        Shapes:
            - **triples:** :math:`(B, 3)`, **triple_index:** :math:`(B)`
            - **output:** three tensors of shape :math:`(B, n)`

        Raises:
            ValueError: If all replacements of a triple are known triples.
        """
        entity, at_head = self.replacements(triples, triple_index, epoch)
        head, relation, tail = (part.unsqueeze(1) for part in triples.unbind(1))
        return (
            torch.where(at_head, entity, head),
            relation.expand_as(entity),
            torch.where(at_head, tail, entity),
        )

    def replacements(
        self, triples: Tensor, triple_index: Tensor, epoch: int
    ) -> tuple[Tensor, Tensor]:
        r"""Returns the entities that make the negatives, and whether each replaces the head.

        Takes :obj:`triples`, :obj:`triple_index` and :obj:`epoch`, and raises the same, as a call.

        Shapes:
            - **output:** two tensors of shape :math:`(B, n)`
        """
        n = self.num_negatives
        positive = np.repeat(triples.cpu().numpy(), n, axis=0)
        index = np.repeat(triple_index.cpu().numpy(), n)
        keys = combine_keys(epoch, index, np.tile(np.arange(n), triples.size(0)))
        if self.sides == "both":
            key = combine_keys(epoch, triple_index.cpu().numpy(), 0)
            at_head = np.repeat(seeded_integers(key, 1, 2, self.seed)[:, 0] == 0, n)
        else:
            at_head = np.full(index.shape, self.sides == "head")
        entity = self._proposed(keys, positive, at_head, 0)
        if self._known is not None:
            todo = np.flatnonzero(self._is_known(positive, at_head, entity))
            for attempt in range(1, _NUM_PROPOSALS):
                if todo.size == 0:
                    break
                rows, side = positive[todo], at_head[todo]
                entity[todo] = self._proposed(keys[todo], rows, side, attempt)
                todo = todo[self._is_known(rows, side, entity[todo])]
            step = max(1, _BLOCK_ELEMENTS // self.num_nodes)
            for block in np.split(todo, range(step, todo.size, step)):
                self._search(keys, positive, at_head, entity, block)
        result = (torch.from_numpy(part).view(-1, n) for part in (entity, at_head))
        return tuple(part.to(triples.device) for part in result)  # type: ignore[return-value]

    def _codes(self, head: NDArray, relation: NDArray, tail: NDArray) -> NDArray[np.int64]:
        return (head * self.num_relations + relation) * self.num_nodes + tail

    def _proposed(
        self, keys: NDArray, positive: NDArray, at_head: NDArray, attempt: int
    ) -> NDArray[np.int64]:
        stream = combine_keys(keys, attempt + 1)
        entity = seeded_integers(stream, 1, self.num_nodes - 1, self.seed)[:, 0]
        return entity + (entity >= np.where(at_head, positive[:, 0], positive[:, 2]))

    def _is_known(self, positive: NDArray, at_head: NDArray, entity: NDArray) -> NDArray[np.bool_]:
        assert self._known is not None
        if self._known.size == 0:
            return np.zeros(entity.shape, dtype=bool)
        head = np.where(at_head, entity, positive[..., 0])
        tail = np.where(at_head, positive[..., 2], entity)
        codes = self._codes(head, positive[..., 1], tail)
        place = np.searchsorted(self._known, codes).clip(max=self._known.size - 1)
        return self._known[place] == codes

    def _search(
        self,
        keys: NDArray,
        positive: NDArray,
        at_head: NDArray,
        entity: NDArray,
        rows: NDArray,
    ) -> None:
        """Draws among the entities that are left, for the given rows, in place."""
        everyone = np.arange(self.num_nodes)
        for _ in range(2):
            triples, side = positive[rows, None], at_head[rows, None]
            own = np.where(side, triples[..., 0], triples[..., 2])
            free = (everyone != own) & ~self._is_known(triples, side, everyone)
            count = free.sum(1)
            # An exact draw of one of the free entities, from the fraction of the row's own key.
            stream = combine_keys(keys[rows], _NUM_PROPOSALS + 1)
            place = seeded_integers(stream, 1, 2**62, self.seed)[:, 0] % count.clip(min=1)
            found = (free.cumsum(1) > place[:, None]).argmax(1)
            entity[rows[count > 0]] = found[count > 0]
            rows = rows[count == 0]
            if rows.size == 0:
                return
            if self.sides != "both":
                break
            at_head[rows] = ~at_head[rows]
        raise ValueError(
            f"The triple (head, relation, tail) = {tuple(positive[rows[0]].tolist())} has no "
            f"negative: all its replacements are known triples (sides={self.sides!r}, "
            f"num_nodes={self.num_nodes}); sample without 'known_triples'"
        )
