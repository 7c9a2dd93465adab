from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.seeding import combine_keys, seeded_integers


class NegativeSampler:
    r"""Draws seeded negative triples, in which another entity replaces the head or the tail.

    A negative depends only on the seed, the epoch, the index of its triple in the training set, and
    its number; it does not depend on the other triples of the batch, their order, or the number of
    processes. The replacement is uniform over all entities except the replaced one.

    Args:
        num_nodes (int): The number of entities, at least 2.
        num_negatives (int): The number :math:`n` of negatives for each triple.
        seed (int): The seed.
        sides (str, optional): The end to replace: :obj:`"head"`, :obj:`"tail"`, or :obj:`"both"`,
            which draws one end per triple and epoch for all of its negatives. (default:
            :obj:`"both"`)

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        num_nodes: int,
        num_negatives: int,
        *,
        seed: int,
        sides: Literal["both", "head", "tail"] = "both",
    ) -> None:
        check_integer("num_negatives", num_negatives, 1)
        if num_nodes < 2:
            raise ValueError(f"A negative needs another entity: 'num_nodes' >= 2 (got {num_nodes})")
        if sides not in ("both", "head", "tail"):
            raise ValueError(f"'sides' needs to be 'both', 'head' or 'tail' (got {sides!r})")
        self.num_nodes = num_nodes
        self.num_negatives = num_negatives
        self.seed = seed
        self.sides = sides

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
        r"""Returns the replacing entities of the negatives, and whether each replaces the head.

        Takes :obj:`triples`, :obj:`triple_index` and :obj:`epoch` as a call does.

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
        # The first of the streams that a draw has had since version 0.1.0.
        entity = seeded_integers(combine_keys(keys, 1), 1, self.num_nodes - 1, self.seed)[:, 0]
        entity += entity >= np.where(at_head, positive[:, 0], positive[:, 2])
        result = (torch.from_numpy(part).view(-1, n) for part in (entity, at_head))
        return tuple(part.to(triples.device) for part in result)  # type: ignore[return-value]
