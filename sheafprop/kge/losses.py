"""Losses of knowledge graph embedding models, over scores that are higher for better triples."""

import inspect
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Module
from torch.nn.functional import logsigmoid

from sheafprop.kernels.rows import full_precision, promote
from sheafprop.kge.distance_cross_entropy import Pairs, softmax_weights


class CrossEntropyLoss(torch.nn.Module):
    r"""The cross entropy of the true entity among all candidates, with label smoothing.

    .. math::
        \mathcal{L} = - \frac{1}{B} \sum_{i=1}^B \left[ (1 - \epsilon) \log p_{i, t_i}
        + \frac{\epsilon}{C} \sum_{j=1}^C \log p_{ij} \right], \qquad
        p_{ij} = \frac{e^{\sigma s_{ij}}}{\sum_{k=1}^C e^{\sigma s_{ik}}}

    where :math:`s_{ij}` is the score of candidate :math:`j` for the query :math:`i`, :math:`t_i`
    its true answer, :math:`\epsilon` the label smoothing and :math:`\sigma` the scale.

    Args:
        label_smoothing (float, optional): :math:`\epsilon`, in :math:`[0, 1)`.
            (default: :obj:`0.0`)
        scale (float, optional): :math:`\sigma`, the inverse temperature of the softmax. Distances
            of unit vectors lie in :math:`[0, 2]` and require a larger value. (default: :obj:`1.0`)

    Shapes:
        - **scores:** :math:`(B, C)`, **target:** :math:`(B)`
        - **output:** a scalar

    Raises:
        ValueError: If an argument is out of its range.
    """

    name: ClassVar[str] = "cross_entropy"
    needs_negatives: ClassVar[bool] = False

    def __init__(self, label_smoothing: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"'label_smoothing' needs to lie in [0, 1) (got {label_smoothing})")
        if not scale > 0.0:
            raise ValueError(f"'scale' needs to be positive (got {scale})")
        self.label_smoothing = label_smoothing
        self.scale = scale

    def forward(self, scores: Tensor, target: Tensor, left_out: Pairs | None = None) -> Tensor:
        """Computes the mean loss of scores.

        Args:
            scores (Tensor): ``[B, C]``.
            target (Tensor): The true columns, int64 ``[B]``.
            left_out (tuple, optional): Rows and columns, int64 ``[p]`` each, of candidates to
                exclude, such as other true answers of the query; rows in ascending order, without
                targets.
        """
        with full_precision(scores):
            return _SmoothedCrossEntropy.apply(
                promote(scores), target, self.label_smoothing, self.scale, left_out
            )

    def extra_repr(self) -> str:
        return f"label_smoothing={self.label_smoothing}, scale={self.scale}"


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Computes the gradient along with the loss, in the one array that is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        target: Tensor,
        smoothing: float,
        scale: float,
        left_out: Pairs | None,
    ) -> Tensor:
        size, weights = scores.size(0), -scores
        loss = softmax_weights(
            weights, weights, target.unsqueeze(1), smoothing, scale, size, left_out
        )
        ctx.save_for_backward(weights)
        return loss / size

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weights,) = ctx.saved_tensors
        return -grad * weights, *[None] * 4


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


LOSS_REGISTRY: dict[str, type[Module]] = {
    loss.name: loss for loss in (CrossEntropyLoss, NSSALoss, MarginRankingLoss)
}


def build_loss(name: str, **config: Any) -> Module:
    r"""Builds a loss from its name in :obj:`LOSS_REGISTRY` and the arguments of its constructor.

    Raises:
        ValueError: If the loss is unknown or does not accept an argument.
    """
    if name not in LOSS_REGISTRY:
        raise ValueError(f"There is no loss '{name}'; expected one of {sorted(LOSS_REGISTRY)}")
    loss = LOSS_REGISTRY[name]
    taken = list(inspect.signature(loss).parameters)
    wrong = [key for key in config if key not in taken]
    if wrong:
        raise ValueError(
            f"The loss '{name}' takes no argument '{wrong[0]}'; expected some of {taken}"
        )
    return loss(**config)
