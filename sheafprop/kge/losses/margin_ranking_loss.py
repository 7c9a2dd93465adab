from typing import ClassVar

import torch
from torch import Tensor

from sheafprop.kernels.rows import full_precision, promote


class MarginRankingLoss(torch.nn.Module):
    r"""The margin ranking loss from the `"Translating Embeddings for Modeling
    Multi-Relational Data" <https://proceedings.neurips.cc/paper/2013/file/
    1cecc7a77928ca8133fa24680a88d2f9-Paper.pdf>`_ paper.

    .. math::
        \mathcal{L} = \frac{1}{Bn} \sum_{i=1}^B \sum_{j=1}^n \max(0, \gamma + s_{ij} - s_i)

    where :math:`s_i` is the score of a positive triple, :math:`s_{ij}` are those of its negatives
    and :math:`\gamma` is the margin.

    Args:
        margin (float, optional): :math:`\gamma`. (default: :obj:`1.0`)

    Shapes:
        - **positive:** :math:`(B)`, **negative:** :math:`(B, n)`
        - **output:** a scalar
    """

    name: ClassVar[str] = "margin_ranking"
    needs_negatives: ClassVar[bool] = True

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Computes the mean loss of ``positive`` ``[B]`` and ``negative`` ``[B, n]`` scores."""
        with full_precision(positive):
            gap = self.margin + promote(negative) - promote(positive).unsqueeze(1)
            return gap.relu().mean()

    def extra_repr(self) -> str:
        return f"margin={self.margin}"
