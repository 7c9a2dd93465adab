from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
