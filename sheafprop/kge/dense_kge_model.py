import math

import torch
from torch import Tensor

from sheafprop.kge.base import Side, fill_
from sheafprop.kge.distance import BLOCK_ELEMENTS
from sheafprop.kge.mapped_kge_model import MappedKGEModel, groups
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
        maps = self._maps(side)
        if rel_type.numel() == 0:
            return rows.new_zeros(0, rows.size(1), maps.size(1))
        order, relations, counts = groups(rel_type)
        blocks = zip(rows[order].split(counts), maps[relations].unbind(0), strict=True)
        mapped = torch.cat([block @ weight.t() for block, weight in blocks])
        return mapped.index_select(0, _inverse(order))

    def _chunk_size(self, rows: Tensor) -> int:
        widest = max(self._maps("head").size(1), self.hidden_channels)
        return max(1, BLOCK_ELEMENTS // (rows.size(1) * widest))


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    return inverse


def near_identity(parameter: Tensor, noise: float, generator: torch.Generator | None) -> None:
    r"""Draws maps around the identity, with Gaussian noise of variance noise^2 / d per entry."""
    draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    eye = torch.eye(parameter.size(1), parameter.size(2), dtype=torch.float64)
    fill_(parameter, eye + draw * (noise / math.sqrt(parameter.size(2))))
