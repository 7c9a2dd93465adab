"""Residual variances of the relations of a trained model, and relation weights from them."""

import torch
from torch import Tensor

from sheafprop.sheaf.coboundary import edge_energy
from sheafprop.sheaf.relation_sheaf import RelationSheaf

# Residuals are formed for so many numbers at once, about 64 MiB in single precision.
_CHUNK_NUMBERS = 2**24
# A relation that fits exactly would get an infinite weight without a floor under its variance.
_FLOOR = 0.1


@torch.no_grad()
def residual_variance(
    x: Tensor, edge_index: Tensor, edge_type: Tensor, sheaf: RelationSheaf
) -> Tensor:
    r"""The mean squared residual of every relation over its triples,

    .. math::
        s_r^2 = \frac{1}{|E_r|} \sum_{e \in E_r} \| R_t x_t - R_h x_h - b_r \|^2 .

    Args:
        x (Tensor): The trained vectors, ``[N, d]``.
        edge_index (Tensor): Heads and tails of the training triples, int64 ``[2, E]``.
        edge_type (Tensor): Their relations, int64 ``[E]``.
        sheaf (RelationSheaf): The restriction maps.

    Returns:
        Tensor: Real, ``[R]``; relations without triples have zero.
    """
    total = x.real.new_zeros(sheaf.num_relations, dtype=torch.float64)
    count = torch.bincount(edge_type, minlength=sheaf.num_relations)
    step = max(1, _CHUNK_NUMBERS // max(1, x.shape[1]))
    for start in range(0, edge_type.numel(), step):
        part = slice(start, start + step)
        energy = edge_energy(x, edge_index[:, part], edge_type[part], sheaf)
        total.index_add_(0, edge_type[part], energy.to(torch.float64))
    return (total / count.clamp_min(1)).to(x.real.dtype)


def relation_weights(variance: Tensor, count: Tensor) -> Tensor:
    r"""Weights of the relations by how well they fit,

    .. math::
        w_r \propto \frac{1}{s_r^2 + 0.1 \, \mathrm{median}(s^2)} ,

    with the median over the relations that have triples. Relations without triples get the median
    weight. The mean weight over the training triples is one. Take ``weights[edge_type]`` as the
    ``edge_weight`` of a propagation.

    Args:
        variance (Tensor): :math:`s_r^2` from :func:`residual_variance`, ``[R]``.
        count (Tensor): Training triples of every relation, ``[R]``.

    Returns:
        Tensor: ``[R]``, positive and finite.

    Raises:
        ValueError: If the shapes differ, or a variance is negative or not finite.
    """
    if variance.dim() != 1 or variance.shape != count.shape:
        raise ValueError(
            "'variance' and 'count' must both be [num_relations] "
            f"(got {list(variance.shape)} and {list(count.shape)})"
        )
    bad = ~(torch.isfinite(variance) & (variance >= 0))
    if bool(bad.any()):
        relation = int(bad.nonzero()[0])
        raise ValueError(
            "'variance' must be finite and not negative "
            f"(got {float(variance[relation])} at relation {relation})"
        )
    seen = count > 0
    known = variance[seen].to(torch.float64)
    # The mean steps in where most relations fit exactly; if all do, they are equal.
    middle = _median(known) if bool(seen.any()) else known.new_zeros(())
    scale = middle if middle > 0 else known.mean()
    if not scale > 0:
        return torch.ones_like(variance)
    weight = 1.0 / (known / scale + _FLOOR)
    out = torch.full(variance.shape, 1.0, dtype=torch.float64, device=variance.device)
    out[seen] = weight
    out[~seen] = _median(weight)
    return (out * (count.sum() / (out * count).sum())).to(variance.dtype)


def _median(values: Tensor) -> Tensor:
    # torch.median would take the lower of the two middle values.
    return torch.quantile(values, 0.5)
