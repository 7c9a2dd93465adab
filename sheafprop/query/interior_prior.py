from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.pairwise_squares import BLOCK_ELEMENTS
from sheafprop.kernels.rows import promote
from sheafprop.query.candidate_scores import double, squares
from sheafprop.ranking.triple_filter import check_triples
from sheafprop.sheaf import RelationSheaf, coboundary
from sheafprop.sheaf.graph_checks import check_finite_features, check_finite_sheaf

# Share of the variance of all vectors that is added to that of the sources of a relation, so that
# a single source does not become a certainty.
_FLOOR = 0.01
# Differences of equal numbers from their mean are this share of them at most.
_ROUNDING = 8 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class InteriorPrior:
    r"""A Gaussian prior on the interior vertices of a query.

    In the energy of a query, interior vertices are free and need not be close to any entity, so
    following a relation forwards and backwards returns to the start. The vertex at which a relation
    :math:`r` starts should be one of the entities at which :math:`r` starts in the facts. Their
    mean :math:`\mu_r` and variance :math:`v_r`, with one count for each fact, define the energy

    .. math::
        E_r(z) = \sum_j \lambda_{rj} {| z_j - \mu_{rj} |}^2, \qquad
        \lambda_{rj} = \frac{\sigma^2}{v_{rj} + 0.01 \, v}

    where :math:`\sigma^2` is the mean squared residual of the facts per coordinate, and :math:`v`
    the mean over coordinates of the variance of all vectors, which regularizes relations with a
    single entity. Each section has its own means; variances are shared. For Gaussian residuals and
    vectors, the minimum of the energy is the most probable interior (MacKay, "Information Theory,
    Inference, and Learning Algorithms", 2003, chapter 28). The prior requires no training.

    Args:
        centre (Tensor): :math:`\mu`, ``[2R, s, d]``, double precision; rows from :math:`R` on are
            those of inverse relations, which start at tails.
        entries (Tensor): :math:`\lambda \ge 0`, real ``[2R, d]``; zero for relations without facts,
            and for all relations if all vectors are equal.
    """

    centre: Tensor
    entries: Tensor

    @classmethod
    @torch.no_grad()
    def of_facts(cls, sheaf: RelationSheaf, x: Tensor, triples: Tensor) -> "InteriorPrior":
        """Estimates the prior from facts between known vectors.

        Args:
            sheaf (RelationSheaf): The maps of the relations.
            x (Tensor): Vectors of the entities, ``[N, d]`` or ``[N, s, d]``.
            triples (Tensor): The facts, int64 ``[m, 3]``.

        Raises:
            ValueError: If there are no facts, they are not int64 ``[m, 3]``, an id is out of range,
                the vectors do not match the maps, or a number is not finite.
        """
        x = prepare_vectors(sheaf, x)
        check_triples(triples, x.shape[0], sheaf.num_relations)
        if len(triples) == 0:
            raise ValueError("a prior needs facts (got none)")
        triples = triples.to(x.device)
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

        # From their mean on, so that vectors far from zero keep the digits of their variance.
        middle, length = x.mean(0), squares(x).mean()
        x = x - middle
        whole, centre = squares(x).mean(), mean(x)
        variance = (mean(squares(x)) - squares(centre)).mean(1).clamp(min=0)
        entries = noise / (variance + _FLOOR * whole)
        known = (number > 0).unsqueeze(1) & (whole > _ROUNDING**2 * length)
        known = known & (entries < float("inf"))
        return cls(centre + middle, torch.where(known, entries, 0.0))


def prepare_vectors(sheaf: RelationSheaf, x: Tensor) -> Tensor:
    """Checks the vectors of a query and the maps, and returns the vectors as ``[N, s, d]``."""
    x = promote(x.detach()[:, None] if x.dim() == 2 else x.detach())
    if x.dim() != 3 or sheaf.stalk_dim not in (None, x.shape[-1]):
        width = sheaf.stalk_dim or "d"
        raise ValueError(f"'x' must be [N, {width}] or [N, s, {width}] (got {list(x.shape)})")
    check_finite_features(x.transpose(0, 1))
    check_finite_sheaf(sheaf)
    return x


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
        total += squares(double(residual)).sum()
        size += residual.numel()
    return total / size
