from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from sheafprop.kge.base import KGEModel, LeftOut, Side
from sheafprop.kge.distance import full_precision, pairwise_distance
from sheafprop.kge.distance_cross_entropy import distance_cross_entropy
from sheafprop.kge.losses import CrossEntropyLoss
from sheafprop.kge.replaced_distance import replaced_distance

_SIGNS: dict[Side, int] = {"tail": 1, "head": -1}


class IsometricKGEModel(KGEModel):
    r"""An abstract base class of models whose relations move vectors and keep all distances.

    The head of a triple is as far from the tail that the relation moves back as the moved head is
    from the tail: one moved vector stands for a query, on either side, and candidates stay as they
    are.
    """

    @abstractmethod
    def _moved(self, known: Tensor, rel_type: Tensor, sign: Tensor | int) -> Tensor:
        """Rows [..., B, s, m], each moved by its relation: forward where the sign is 1, back where
        it is -1."""

    def _residual(self, heads: Tensor, rel_type: Tensor, tails: Tensor) -> Tensor:
        return self._moved(heads, rel_type, 1) - tails

    def _distances(self, known: Tensor, rel_type: Tensor, rows: Tensor, side: Side) -> Tensor:
        queries = self._moved(known, rel_type, _SIGNS[side])
        return pairwise_distance(
            queries, rows, p=self.p, squared=self.squared, paired=self.is_complex
        )

    def loss_over_entities(
        self,
        loss: torch.nn.Module,
        x: Tensor,
        triples: Tensor,
        sides: Literal["both", "tail"] = "both",
        left_out: LeftOut | None = None,
    ) -> Tensor:
        if self.p != 2.0 or x.dim() != 2 or not isinstance(loss, CrossEntropyLoss):
            return super().loss_over_entities(loss, x, triples, sides, left_out)
        rows, (head_index, _, tail_index) = self._rows(x), triples.unbind(1)
        both = sides == "both"
        pairs = None if left_out is None else left_out["tail"]
        if left_out is not None and both:
            # The queries for heads follow those for tails.
            (i, tails), (j, heads) = left_out["tail"], left_out["head"]
            pairs = torch.cat([i, j + len(triples)]), torch.cat([tails, heads])
        return distance_cross_entropy(
            self._queries(rows, triples, ("tail", "head") if both else ("tail",)).flatten(0, 1),
            rows.squeeze(1),
            torch.cat([tail_index, head_index]) if both else tail_index,
            squared=self.squared,
            label_smoothing=loss.label_smoothing,
            scale=loss.scale,
            left_out=pairs,
        )

    def score_replaced(self, x: Tensor, triples: Tensor, entity: Tensor, at_head: Tensor) -> Tensor:
        if self.p != 2.0 or x.dim() != 2:
            return super().score_replaced(x, triples, entity, at_head)
        rows = self._rows(x)
        queries = self._queries(rows, triples, ("tail", "head"))
        return -replaced_distance(
            queries, rows.squeeze(1), entity, at_head.long(), squared=self.squared
        )

    def _queries(self, rows: Tensor, triples: Tensor, sides: Sequence[Side]) -> Tensor:
        """The vectors [len(sides), B, m] that candidates at each of the sides are compared with."""
        head_index, rel_type, tail_index = triples.unbind(1)
        index = torch.cat([head_index if side == "tail" else tail_index for side in sides])
        known = rows.index_select(0, index).unflatten(0, (len(sides), -1))
        sign = torch.tensor([_SIGNS[side] for side in sides], device=rows.device)
        with full_precision(rows):
            return self._moved(known, rel_type, sign.view(-1, 1, 1, 1)).squeeze(2)
