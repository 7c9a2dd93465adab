from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sheafprop.kernels.rows import full_precision, promote


class NSSALoss(torch.nn.Module):
    r"""The self-adversarial negative sampling loss from the `"RotatE: Knowledge Graph Embedding by
    Relational Rotation in Complex Space" <https://arxiv.org/abs/1902.10197>`_ paper.

    .. math::
        \mathcal{L} = - \frac{1}{2B} \sum_{i=1}^B \left[ \log \sigma (\gamma + s_i)
        + \sum_{j=1}^n w_{ij} \log \sigma (- s_{ij} - \gamma) \right], \qquad
        w_{ij} = \frac{e^{\alpha s_{ij}}}{\sum_{k=1}^n e^{\alpha s_{ik}}}

    where :math:`s_i` is the score of a positive triple (minus its distance), :math:`s_{ij}` are
    those of its negatives, :math:`\gamma` is the margin and :math:`\alpha` the adversarial
    temperature. No gradient flows through the weights :math:`w_{ij}`.

    Args:
        margin (float, optional): :math:`\gamma`. (default: :obj:`9.0`)
        adversarial_temperature (float, optional): :math:`\alpha`; zero weights all negatives
            equally. (default: :obj:`1.0`)

    Shapes:
        - **positive:** :math:`(B)`, **negative:** :math:`(B, n)`
        - **output:** a scalar

    Raises:
        ValueError: If the temperature is negative.
    """

    name: ClassVar[str] = "nssa"
    needs_negatives: ClassVar[bool] = True

    def __init__(self, margin: float = 9.0, adversarial_temperature: float = 1.0) -> None:
        super().__init__()
        if not adversarial_temperature >= 0.0:
            raise ValueError(
                f"'adversarial_temperature' must not be negative (got {adversarial_temperature})"
            )
        self.margin = margin
        self.adversarial_temperature = adversarial_temperature

    def forward(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Computes the mean loss of ``positive`` ``[B]`` and ``negative`` ``[B, n]`` scores."""
        with full_precision(positive):
            positive, negative = promote(positive), promote(negative)
            weight = torch.softmax(self.adversarial_temperature * negative.detach(), dim=1)
            positive_term = logsigmoid(self.margin + positive).mean()
            negative_term = (weight * logsigmoid(-negative - self.margin)).sum(1).mean()
            return -(positive_term + negative_term) / 2

    def extra_repr(self) -> str:
        return f"margin={self.margin}, adversarial_temperature={self.adversarial_temperature}"
