import math
from typing import Literal

import torch
from torch import Tensor

from sheafprop.kernels.mapped_rows import mapped_rows
from sheafprop.kge.base import LeftOut, Side, fill_
from sheafprop.kge.distance import BLOCK_ELEMENTS, full_precision
from sheafprop.kge.losses import CrossEntropyLoss
from sheafprop.kge.mapped_cross_entropy import mapped_cross_entropy
from sheafprop.kge.mapped_kge_model import MappedKGEModel
from sheafprop.sheaf import DenseSheaf


class DenseKGEModel(MappedKGEModel):
    r"""An abstract base class of models whose restriction maps are matrices.

    Rows are grouped by relation, and a relation's map is applied to its rows, or to all candidates,
    by one matrix product. No tensor of triples x map or of triples x candidates x width is formed.
    """

    def sheaf(self) -> DenseSheaf:
        return DenseSheaf(
            head=self._maps("head"), tail=self._maps("tail"), translation=self._translations()
        )

    def _apply_map(self, rows: Tensor, weight: Tensor) -> Tensor:
        return rows @ weight.t()

    def _mapped(self, rows: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        return mapped_rows(rows, self._maps(side), rel_type)

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
        order = triples[:, 1].argsort(stable=True)
        triples = triples[order]
        if left_out is not None:
            place = _inverse(order)
            left_out = {side: _in_order(place[i], j) for side, (i, j) in left_out.items()}
        tails = self._cross_entropy(loss, x, triples, "tail", left_out)
        if sides == "tail":
            return tails
        return (tails + self._cross_entropy(loss, x, triples, "head", left_out)) / 2

    def _cross_entropy(
        self,
        loss: CrossEntropyLoss,
        x: Tensor,
        triples: Tensor,
        side: Side,
        left_out: LeftOut | None,
    ) -> Tensor:
        """The loss over the candidates at one side of triples in the order of their relations."""
        known, true = triples[:, [0, 2] if side == "tail" else [2, 0]].unbind(1)
        rows, rel_type = self._rows(x), triples[:, 1]
        relations, group = rel_type.unique_consecutive(return_inverse=True)
        with full_precision(x):
            return mapped_cross_entropy(
                self._queries(rows.index_select(0, known), rel_type, side).squeeze(1),
                rows.squeeze(1),
                self._maps(side)[relations],
                group,
                true,
                squared=self.squared,
                label_smoothing=loss.label_smoothing,
                scale=loss.scale,
                left_out=None if left_out is None else left_out[side],
            )

    def _chunk_size(self, rows: Tensor) -> int:
        widest = max(self._maps("head").size(1), self.hidden_channels)
        return max(1, BLOCK_ELEMENTS // (rows.size(1) * widest))


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    return inverse


def _in_order(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    rows, order = rows.sort()
    return rows, columns[order]


def near_identity(parameter: Tensor, noise: float, generator: torch.Generator | None) -> None:
    r"""Draws maps around the identity, with Gaussian noise of variance noise^2 / d per entry."""
    draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    eye = torch.eye(parameter.size(1), parameter.size(2), dtype=torch.float64)
    fill_(parameter, eye + draw * (noise / math.sqrt(parameter.size(2))))
