import torch
from torch import Tensor

from sheafprop.kge.base import Side, fill_
from sheafprop.kge.mapped_kge_model import MappedKGEModel
from sheafprop.sheaf import DiagonalSheaf


class DiagonalKGEModel(MappedKGEModel):
    r"""An abstract base class of models whose restriction maps are real diagonal matrices."""

    def sheaf(self) -> DiagonalSheaf:
        return DiagonalSheaf(
            head=self._maps("head"), tail=self._maps("tail"), translation=self._translations()
        )

    def _apply_map(self, rows: Tensor, weight: Tensor) -> Tensor:
        return rows * weight

    def _mapped(self, rows: Tensor, rel_type: Tensor, side: Side) -> Tensor:
        return rows * self._maps(side)[rel_type].unsqueeze(1)


def near_one(parameter: Tensor, noise: float, generator: torch.Generator | None) -> None:
    r"""Draws diagonals around one, with Gaussian noise of variance noise^2 per entry."""
    draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    fill_(parameter, 1 + noise * draw)
