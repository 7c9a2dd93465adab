from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kge.distance import BLOCK_ELEMENTS
from sheafprop.query.branch_energy import double, squares
from sheafprop.sheaf import RelationSheaf, coboundary

# Share of the variance of all vectors that is added to that of the sources of a relation, so that
# a single source does not become a certainty.
_FLOOR = 0.01


@dataclass(frozen=True, eq=False)
class InteriorPrior:
    r"""Where the vertices between the sources and the target of a query may be expected.

    The energy of a query leaves them free: a vertex between may lie where no entity does, so that
    walking a relation and back returns to the start. But the vertex that a relation :math:`r`
    leaves should be one of the entities that :math:`r` leaves in the facts. Their mean and variance
    make an energy of it,

    .. math::
        E_r(z) = \sum_j \lambda_{rj} {| z_j - \mu_{rj} |}^2, \qquad
        \lambda_{rj} = \frac{\sigma^2}{v_{rj}}

    where :math:`\sigma^2` is the mean squared residual of the facts per coordinate. If residuals
    and vectors were Gaussian, the least energy would be at the most probable interior (MacKay,
    "Information Theory, Inference, and Learning Algorithms", 2003, chapter 28). Nothing is trained.

    Args:
        centre (Tensor): :math:`\mu`, ``[2R, s, d]``, double precision; from row :math:`R` on those
            of inverse relations, which leave the tails.
        entries (Tensor): :math:`\lambda \ge 0`, real ``[2R, d]``; zero for relations without facts.
    """

    centre: Tensor
    entries: Tensor

    @classmethod
    @torch.no_grad()
    def of_facts(cls, sheaf: RelationSheaf, x: Tensor, triples: Tensor) -> InteriorPrior:
        """The prior that facts over known vectors suggest.

        Args:
            sheaf (RelationSheaf): The maps of the relations.
            x (Tensor): Vectors of the entities, ``[N, d]`` or ``[N, s, d]``.
            triples (Tensor): The facts, int64 ``[m, 3]``.

        Raises:
            ValueError: If there are no facts.
        """
        if len(triples) == 0:
            raise ValueError("a prior needs facts (got none)")
        x = x.detach()[:, None] if x.dim() == 2 else x.detach()
        noise, x = _noise(sheaf, x, triples), double(x)
        head, relation, tail = triples.unbind(1)
        source = torch.cat([head, tail])
        leaves = torch.cat([relation, relation + sheaf.num_relations])
        # Sums by relation as one product, in which each source counts as often as it has facts.
        size = (2 * sheaf.num_relations, x.shape[0])
        ones = torch.ones(len(leaves), dtype=torch.float64, device=x.device)
        counts = torch.sparse_coo_tensor(
            torch.stack([leaves, source]), ones, size, check_invariants=False
        )
        number = torch.sparse.sum(counts, 1).to_dense()
        share = (1 / number.clamp(min=1)).view(-1, 1, 1)

        def mean(values: Tensor) -> Tensor:
            flat = torch.view_as_real(values) if values.is_complex() else values
            sums = (counts @ flat.reshape(len(flat), -1)).view(-1, *flat.shape[1:])
            return (torch.view_as_complex(sums) if values.is_complex() else sums) * share

        centre, whole = mean(x), squares(x - x.mean(0)).mean()
        variance = (mean(squares(x)) - squares(centre)).mean(1).clamp(min=0)
        entries = noise / (variance + _FLOOR * whole)
        known = (number > 0).unsqueeze(1) & (entries < float("inf"))
        return cls(centre, torch.where(known, entries, 0.0))


def _noise(sheaf: RelationSheaf, x: Tensor, triples: Tensor) -> Tensor:
    """The mean squared residual of facts per coordinate."""
    sections, size = x.transpose(0, 1), 0
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    step = max(1, BLOCK_ELEMENTS // (x.shape[1] * x.shape[2]))
    for part in triples.split(step):
        head, relation, tail = part.unbind(1)
        residual = coboundary(sections, torch.stack([head, tail]), relation, sheaf)
        translation = sheaf.translation_of(relation)
        if translation is not None:
            residual = residual - translation
        total += squares(residual).sum(dtype=torch.float64)
        size += residual.numel()
    return total / size
