import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.inductive.episode_scorer import EpisodeScorer, Scorer, WithVectors, score_spread
from sheafprop.nn.proximity import Proximity
from sheafprop.ranking.edge_type_heuristic import EdgeTypeHeuristic

#: What is added to a probability before its logarithm.
_FLOOR = 1e-6
# Rows of all entities are kept where they need at most so many numbers (1 GiB, taken row by row).
_KEPT = 2**28


@dataclass(frozen=True)
class ProximitySettings:
    r"""How proximity in the observed graph enters a score, in plain values.

    Args:
        weight (float): :math:`\lambda` beside the score of episodes, which is a logarithm of
            probabilities.
        share (float): :math:`\lambda` beside the score of propagated vectors, in standard
            deviations of that score over the candidates.
        own_last (bool): Whether the query's own entity is ranked last where its relation has no
            loop in the training graph.
        teleport (float): Probability :math:`\alpha` to return to the query's entity.
        num_iterations (int): Steps of the walk.

    Raises:
        ValueError: If a number is out of its range.
    """

    weight: float = 0.3
    share: float = 0.4
    own_last: bool = True
    teleport: float = 0.15
    num_iterations: int = 20

    def __post_init__(self) -> None:
        for name in ("weight", "share"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"'{name}' must be finite and not negative (got {value})")
        if not 0 < self.teleport < 1:
            raise ValueError(f"'teleport' must lie between 0 and 1 (got {self.teleport})")
        check_integer("num_iterations", self.num_iterations, 0)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return asdict(self)


class LogProximity:
    r"""Rows :math:`\log(\pi_e(v) + 10^{-6})` of the observed graph, kept where they are few.

    Args:
        triples (Tensor): The observed triples ``[m, 3]``.
        num_nodes (int): Number of entities.
        teleport (float): See :class:`~sheafprop.nn.Proximity`.
        num_iterations (int, optional): See there.
    """

    def __init__(
        self,
        triples: Tensor,
        num_nodes: int,
        *,
        teleport: float = 0.15,
        num_iterations: int | None = 20,
    ):
        self.device = triples.device
        self._near = Proximity(
            triples[:, [0, 2]].T, num_nodes, teleport=teleport, num_iterations=num_iterations
        )
        keeps = num_nodes * num_nodes <= _KEPT
        self._rows = torch.empty(num_nodes if keeps else 0, num_nodes, device=triples.device)
        self._known = torch.zeros(len(self._rows), dtype=torch.bool, device=triples.device)

    @classmethod
    def of_settings(
        cls, settings: ProximitySettings, triples: Tensor, num_nodes: int
    ) -> "LogProximity":
        """The rows with the walk of some settings."""
        return cls(
            triples, num_nodes, teleport=settings.teleport, num_iterations=settings.num_iterations
        )

    def __call__(self, entity: Tensor) -> Tensor:
        """Returns the rows ``[B, N]`` of some entities."""
        if not len(self._rows):
            unique, place = torch.unique(entity, return_inverse=True)
            return (self._near(unique) + _FLOOR).log_()[place]
        missing = entity[~self._known[entity]].unique()
        if missing.numel():
            self._rows[missing] = (self._near(missing) + _FLOOR).log_().to(self._rows)
            self._known[missing] = True
        return self._rows[entity]


class ProximityScorer:
    r"""A score plus the logarithm of the proximity of its entities in the observed graph.

    .. math::
        f'(e, q, v) = f(e, q, v) + \lambda \log(\pi_e(v) + 10^{-6})

    The proximity of the public benchmarks' entities says much about their missing triples, whatever
    the relation; reports print the score with and without it, and proximity alone.

    Args:
        scorer (Scorer, optional): What gives :math:`f`; None for zero: proximity alone.
        near (LogProximity): The logarithms.
        weight (float): :math:`\lambda`.
        may_loop (Tensor, optional): Relations that have a loop in the training graph, bool ``[R]``.
            Of the others, the query's own entity is ranked last; None to rank it as it is.
        filtered_by (EdgeTypeHeuristic, optional): Ranks candidates that were seen on that side of
            the relation before all others.
    """

    def __init__(
        self,
        scorer: Scorer | None,
        near: LogProximity,
        weight: float = 1.0,
        *,
        may_loop: Tensor | None = None,
        filtered_by: EdgeTypeHeuristic | None = None,
    ):
        self.scorer, self.near, self.weight = scorer, near, weight
        self.may_loop, self.filtered_by = may_loop, filtered_by

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all tails for heads ``head_index`` and relations ``rel_type``."""
        given = None if self.scorer is None else self.scorer.score_tails(head_index, rel_type)
        seen = None
        if self.filtered_by is not None:
            seen = self.filtered_by.score_tails(head_index, rel_type)
        return self._add(given, seen, head_index, rel_type)

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all heads for relations ``rel_type`` and tails ``tail_index``."""
        given = None if self.scorer is None else self.scorer.score_heads(rel_type, tail_index)
        seen = None
        if self.filtered_by is not None:
            seen = self.filtered_by.score_heads(rel_type, tail_index)
        return self._add(given, seen, tail_index, rel_type)

    def _add(
        self, given: Tensor | None, seen: Tensor | None, entity: Tensor, relation: Tensor
    ) -> Tensor:
        if self.weight == 0:
            assert given is not None
            total = given.clone()
        else:
            total = self.weight * self.near(entity)
            if given is not None:
                total = given + total
        if seen is not None:
            # No logarithm differs from another by so much.
            total = total + seen * (1.0 - 2 * self.weight * torch.log(torch.tensor(_FLOOR)))
        if self.may_loop is not None:
            rank_own_last_(total, entity, ~self.may_loop[relation])
        return total


def add_proximity(
    scorer: Scorer,
    near: LogProximity,
    settings: ProximitySettings,
    observed: Tensor,
    trained: Tensor,
    num_relations: int,
) -> ProximityScorer:
    r"""A score with proximity as settings say.

    :math:`\lambda` is the weight of the settings beside a score of episodes, else their share times
    the spread of the score.

    Args:
        scorer (Scorer): The score: that of episodes, or of propagated vectors.
        near (LogProximity): Proximity in the observed graph.
        settings (ProximitySettings): The weights.
        observed (Tensor): Observed triples, whose queries show the spread, ``[m, 3]``.
        trained (Tensor): The training triples, whose loops say which relations have some.
        num_relations (int): Number of relations.
    """
    if isinstance(scorer, EpisodeScorer | WithVectors):
        weight = settings.weight
    elif len(observed):
        weight = settings.share * score_spread(scorer, observed.to(near.device))
    else:
        weight = 0.0
    loops = None
    if settings.own_last:
        loops = relations_with_loops(trained, num_relations).to(near.device)
    return ProximityScorer(scorer, near, weight, may_loop=loops)


def rank_own_last_(scores: Tensor, entity: Tensor, rows: Tensor) -> None:
    """Puts the query's own entity below all others, in place.

    Args:
        scores (Tensor): ``[B, N]``.
        entity (Tensor): The query's entity in each row, ``[B]``.
        rows (Tensor): The rows that are changed, bool ``[B]``.
    """
    row = rows.nonzero().flatten()
    scores[row, entity[row]] = scores[row].amin(1) - 1


def relations_with_loops(triples: Tensor, num_relations: int) -> Tensor:
    """Relations that have a triple from an entity to itself, bool ``[R]``."""
    out = torch.zeros(num_relations, dtype=torch.bool, device=triples.device)
    out[triples[triples[:, 0] == triples[:, 2], 1]] = True
    return out
