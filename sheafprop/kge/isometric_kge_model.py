from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from sheafprop.kge.base import KGEModel, Side
from sheafprop.kge.distance import full_precision, pairwise_distance
from sheafprop.kge.distance_cross_entropy import distance_cross_entropy
from sheafprop.kge.losses import CrossEntropyLoss
from sheafprop.kge.replaced_distance import replaced_distance

# The side whose entity is replaced, by whether it is the head.
_SIDES: tuple[Side, Side] = ("tail", "head")


class IsometricKGEModel(KGEModel):
    r"""An abstract base class of models whose relations move vectors and keep all distances.

    The head of a triple is as far from the tail that the relation moves back as the moved head is
    from the tail: one moved vector stands for a query, on either side, and candidates stay as they
    are.
    """

    @abstractmethod
    def _moved(self, known: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        """Where heads [B, s, m] are sent for candidates at the tail, or tails are sent back."""

    def _residual(self, heads: Tensor, rel_type: Tensor, tails: Tensor) -> Tensor:
        return self._moved(heads, rel_type, "tail") - tails

    def _distances(self, known: Tensor, rel_type: Tensor, rows: Tensor, side: Side) -> Tensor:
        queries = self._moved(known, rel_type, side)
        return pairwise_distance(
            queries, rows, p=self.p, squared=self.squared, paired=self.is_complex
        )

    def loss_over_entities(
        self,
        loss: torch.nn.Module,
        x: Tensor,
        triples: Tensor,
        sides: Literal["both", "tail"] = "both",
    ) -> Tensor:
        if self.p != 2.0 or x.dim() != 2 or not isinstance(loss, CrossEntropyLoss):
            return super().loss_over_entities(loss, x, triples, sides)
        rows, (head_index, _, tail_index) = self._rows(x), triples.unbind(1)
        queries, target = [self._queries(rows, triples, "tail")], [tail_index]
        if sides == "both":
            queries.append(self._queries(rows, triples, "head"))
            target.append(head_index)
        return distance_cross_entropy(
            torch.cat(queries),
            rows.squeeze(1),
            torch.cat(target),
            squared=self.squared,
            label_smoothing=loss.label_smoothing,
            scale=loss.scale,
        )

    def score_replaced(self, x: Tensor, triples: Tensor, entity: Tensor, at_head: Tensor) -> Tensor:
        if self.p != 2.0 or x.dim() != 2:
            return super().score_replaced(x, triples, entity, at_head)
        rows = self._rows(x)
        queries = torch.stack([self._queries(rows, triples, side) for side in _SIDES], dim=1)
        return -replaced_distance(
            queries, rows.squeeze(1), entity, at_head.long(), squared=self.squared
        )

    def _queries(self, rows: Tensor, triples: Tensor, side: Side) -> Tensor:
        """The vectors [B, m] that candidates at one side are compared with."""
        head_index, rel_type, tail_index = triples.unbind(1)
        known = rows.index_select(0, head_index if side == "tail" else tail_index)
        with full_precision(rows):
            return self._moved(known, rel_type, side).squeeze(1)
