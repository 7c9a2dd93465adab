from collections.abc import Callable, Sequence
from itertools import groupby

from torch import Tensor

from sheafprop.data.finite_rows import name_nonfinite_rows
from sheafprop.kge.base import KGEModel


class SectionScorer:
    r"""Scores triples by the weighted sum, over sections, of a model's own scores.

    .. math::
        f(h, r, t) = \sum_{i=1}^{s} a_i \, f_{\text{model}} \left( x_h^{(i)}, r, x_t^{(i)} \right)

    Args:
        model (KGEModel): The model that scores one section.
        x (Tensor): Vectors of all entities, ``[N, s, d]``.
        weight (sequence of float): :math:`a_i > 0`, one for each section.
        labels (sequence of str, optional): The labels of the entities, for messages.

    Raises:
        ValueError: If weights and sections differ in number, or a vector is not finite (the first
            such entity is named).
    """

    def __init__(
        self,
        model: KGEModel,
        x: Tensor,
        weight: Sequence[float],
        labels: Sequence[str] | None = None,
    ):
        if x.dim() != 3 or x.shape[1] != len(weight):
            raise ValueError(
                f"'x' must be [N, s, d] with a weight for each section (got {list(x.shape)} and "
                f"{len(weight)} weights)"
            )
        numbers = [str(i) for i in range(len(x))] if labels is None else labels
        if named := name_nonfinite_rows(x, numbers):
            raise ValueError(
                f"the vector of {named} is not finite, so no score would mean anything"
            )
        self.model = model
        # Sections of one weight are scored together, in one matrix product.
        self._groups: list[tuple[float, Tensor]] = []
        start = 0
        for value, members in groupby(weight):
            size = len(list(members))
            self._groups.append((value, x[:, start : start + size].contiguous()))
            start += size

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all tails for heads ``head_index`` and relations ``rel_type``."""
        return self._sum(lambda x: self.model.score_tails(x, head_index, rel_type))

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all heads for relations ``rel_type`` and tails ``tail_index``."""
        return self._sum(lambda x: self.model.score_heads(x, rel_type, tail_index))

    def _sum(self, score: Callable[[Tensor], Tensor]) -> Tensor:
        total: Tensor | None = None
        for value, x in self._groups:
            part = score(x) * value
            total = part if total is None else total + part
        assert total is not None
        return total
