import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sheafprop.checks import check_integer
from sheafprop.inductive.answer_counts import AnswerCounts
from sheafprop.inductive.episode_scorer import EpisodeScorer, Scorer, WithVectors, score_spread
from sheafprop.kge.base import Side
from sheafprop.nn.proximity import Proximity
from sheafprop.nn.relation_proximity import RelationProximity
from sheafprop.ranking.edge_type_heuristic import EdgeTypeHeuristic

#: What is added to a probability before its logarithm.
FLOOR = 1e-6
#: What is added to the proximity of peers before its logarithm.
_PEER_FLOOR = 1e-5
# Rows of all entities are kept where they need at most so many numbers (1 GiB, taken row by row).
_KEPT = 2**28
# Walks that weigh relations run together so often, which keeps their columns in the cache.
_WALKS = 64
# Products that proximity takes without being asked for, at most.
_MOST_PRODUCTS = 2e10


@dataclass(frozen=True)
class ProximitySettings:
    r"""What the observed graph adds to a score, in plain values: see :class:`ProximityScorer`.

    Args:
        weight (float): :math:`\lambda` beside the score of episodes, which is a logarithm of
            probabilities.
        share (float): :math:`\lambda` beside the score of propagated vectors, in standard
            deviations of that score over the candidates.
        peers (float): Weight :math:`\mu` of the proximity of peers, in units of :math:`\lambda`.
        frequency (float): Weight :math:`\eta` of the frequency of answers beside the score of
            propagated vectors, in standard deviations of that score. The score of episodes has a
            weight of its own.
        own_last (bool): Whether the query's own entity is ranked last where its relation has no
            loop in the training graph.
        teleport (float): Probability :math:`\alpha` to return to the query's entity.
        num_iterations (int): Steps of the walk.

    Raises:
        ValueError: If a number is out of its range.
    """

    weight: float = 0.3
    share: float = 0.4
    peers: float = 0.0
    frequency: float = 0.0
    own_last: bool = True
    teleport: float = 0.15
    num_iterations: int = 20

    def __post_init__(self) -> None:
        for name in ("weight", "share", "peers", "frequency"):
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
    r"""Rows :math:`\log(\pi_{e, q}(v) + 10^{-6})` for queries :math:`(e, q)` of the observed graph.

    :math:`\pi_{e, q}` is personalized PageRank. Without ``log_weight`` it does not depend on
    :math:`q`, and the rows of an entity are kept where they are few.

    :meth:`peers` gives the logarithms

    .. math::
        \log \Bigl( \sum_{u \ne e, \, (u, q, v) \in G} \frac{\pi_{e, q}(u)}{D_u} + 10^{-5} \Bigr)

    of how near to :math:`e` other entities are whose observed answer :math:`v` is. :math:`D_u` is
    the number of triple ends at :math:`u`, at least one; without ``log_weight``,
    :math:`\pi_e(u) / D_u` is symmetric but for a factor of :math:`e`.

    Args:
        triples (Tensor): The observed triples ``[m, 3]``.
        num_nodes (int): Number of entities.
        log_weight (Tensor, optional): :math:`\log w_{q, r}`, how much a step along relation
            :math:`r` counts in the walk for queries along :math:`q`, ``[2R, R]``: relations, then
            their inverses. (default: all zero)
        teleport (float): See :class:`~sheafprop.nn.Proximity`.
        num_iterations (int, optional): See there.
    """

    def __init__(
        self,
        triples: Tensor,
        num_nodes: int,
        *,
        log_weight: Tensor | None = None,
        teleport: float = 0.15,
        num_iterations: int | None = 20,
    ):
        self.device = triples.device
        self._triples, self.num_nodes = triples, num_nodes
        self._log_weight = None if log_weight is None else log_weight.detach().to(self.device)
        edges = triples[:, [0, 2]].T
        if self._log_weight is not None:
            if num_iterations is None:
                raise ValueError("walks that weigh relations need 'num_iterations'")
            size = list(self._log_weight.shape)
            if len(size) != 2 or size[0] != 2 * size[1]:
                raise ValueError(
                    f"'log_weight' must have a row for each relation and each inverse, and a "
                    f"column for each relation: [2R, R] (got {size})"
                )
            self._walk = RelationProximity(
                edges,
                triples[:, 1],
                num_nodes,
                self._log_weight.shape[1],
                teleport=teleport,
                num_iterations=num_iterations,
            )
            return
        self._near = Proximity(edges, num_nodes, teleport=teleport, num_iterations=num_iterations)
        keeps = num_nodes * num_nodes <= _KEPT
        self._rows = torch.empty(num_nodes if keeps else 0, num_nodes, device=triples.device)
        self._known = torch.zeros(len(self._rows), dtype=torch.bool, device=triples.device)

    @classmethod
    def of_settings(
        cls,
        settings: ProximitySettings,
        triples: Tensor,
        num_nodes: int,
        log_weight: Tensor | None = None,
    ) -> "LogProximity":
        """The rows with the walk of some settings."""
        return cls(
            triples,
            num_nodes,
            log_weight=log_weight,
            teleport=settings.teleport,
            num_iterations=settings.num_iterations,
        )

    def __call__(self, entity: Tensor, relation: Tensor, side: Side, peers: float = 0.0) -> Tensor:
        """Returns the rows ``[B, N]`` of queries, with the arguments of :meth:`probabilities`.

        With ``peers``, so many times those of :meth:`peers` are added.
        """
        near = self.probabilities(entity, relation, side)
        rows = (near + FLOOR).log_()
        if peers:
            rows += peers * self._peers(near, entity, relation, side)
        return rows

    def probabilities(self, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        r"""Returns the rows :math:`\pi_{e, q}` ``[B, N]`` of queries.

        Args:
            entity, relation (Tensor): The known ends and the relations of the queries, ``[B]``.
            side (str): The side of the candidates, ``"tail"`` or ``"head"``.
        """
        if self._log_weight is not None:
            return self._walk_from(entity, relation, side)
        if not len(self._rows):
            unique, place = torch.unique(entity, return_inverse=True)
            return self._near(unique)[place]
        missing = entity[~self._known[entity]].unique()
        if missing.numel():
            self._rows[missing] = self._near(missing).to(self._rows)
            self._known[missing] = True
        return self._rows[entity]

    def _walk_from(self, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        assert self._log_weight is not None
        size, half = self._log_weight.shape
        query = relation if side == "tail" else relation + half
        pairs, place = torch.unique(entity * size + query, return_inverse=True)
        rows = [
            self._walk(part // size, self._log_weight[part % size].softmax(1))
            for part in pairs.split(_WALKS)
        ]
        return torch.cat(rows)[place]

    def peers(self, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Returns the logarithms ``[B, N]`` of the proximity of peers, with the arguments of
        :meth:`probabilities`."""
        near = self.probabilities(entity, relation, side)
        return self._peers(near, entity, relation, side)

    def _peers(self, near: Tensor, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        near = near / self._degree
        near[torch.arange(len(entity), device=near.device), entity] = 0
        out = torch.full_like(near, _PEER_FLOOR)
        for one in relation.unique():
            rows = (relation == one).nonzero().flatten()
            ends = self._triples[self._triples[:, 1] == one][:, [0, 2]]
            peer, answer = (ends if side == "tail" else ends.flip(1)).unbind(1)
            found = near.new_zeros(len(rows), near.shape[1])
            out[rows] += found.index_add_(1, answer, near[rows][:, peer])
        return out.log_()

    @cached_property
    def _degree(self) -> Tensor:
        head, tail = self._triples[self._triples[:, 0] != self._triples[:, 2]][:, [0, 2]].unbind(1)
        ends = torch.cat([head, tail])
        return torch.bincount(ends, minlength=self.num_nodes).clamp_min(1)


def proximity_is_cheap(triples: Tensor, num_edges: int, num_iterations: int = 20) -> bool:
    """Whether the proximities of all entities of some triples can be computed in seconds.

    Args:
        triples (Tensor): The triples, ``[m, 3]``.
        num_edges (int): Number of observed triples.
        num_iterations (int): Steps of the walk.
    """
    sources = len(triples[:, [0, 2]].unique())
    return 2.0 * sources * num_edges * num_iterations <= _MOST_PRODUCTS


class ProximityScorer:
    r"""A score plus the logarithm of the proximity of its entities in the observed graph.

    .. math::
        f'(e, q, v) = f(e, q, v) + \lambda \Bigl[ \log(\pi_{e, q}(v) + 10^{-6})
        + \mu \log \Bigl( \sum_u \frac{\pi_{e, q}(u)}{D_u} + 10^{-5} \Bigr) \Bigr]
        + \eta \log(N \hat p_q(v))

    where the sum is over the peers of :math:`e`: other entities :math:`u` of which :math:`v` is an
    observed answer to :math:`q`, see :class:`LogProximity`. So a candidate is ranked before others
    where it answers the query for entities near :math:`e`; an observed triple does not count for
    itself. :math:`\hat p_q(v)` is how frequent an answer is, whatever the entity, see
    :class:`AnswerCounts`. The proximity of the public benchmarks' entities says much about their
    missing triples, whatever the relation; reports print the score with and without it, and
    proximity alone.

    Args:
        scorer (Scorer, optional): What gives :math:`f`; None for zero: proximity alone.
        near (callable): The logarithms, with the arguments of :class:`LogProximity`.
        weight (float): :math:`\lambda`.
        peers (float): :math:`\mu`.
        answers (callable, optional): The logarithms :math:`\log(N \hat p_q(v))`, ``[B, N]``, from
            relations and side.
        frequency (float): :math:`\eta`.
        may_loop (Tensor, optional): Relations that have a loop in the training graph, bool ``[R]``.
            Of the others, the query's own entity is ranked last; None to rank it as it is.
        filtered_by (EdgeTypeHeuristic, optional): Ranks candidates that were seen on that side of
            the relation before all others.
    """

    def __init__(
        self,
        scorer: Scorer | None,
        near: Callable[[Tensor, Tensor, Side, float], Tensor],
        weight: float = 1.0,
        *,
        peers: float = 0.0,
        answers: Callable[[Tensor, Side], Tensor] | None = None,
        frequency: float = 0.0,
        may_loop: Tensor | None = None,
        filtered_by: EdgeTypeHeuristic | None = None,
    ):
        self.scorer, self.near, self.weight, self.peers = scorer, near, weight, peers
        self.answers, self.frequency = answers, frequency
        self.may_loop, self.filtered_by = may_loop, filtered_by

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all tails for heads ``head_index`` and relations ``rel_type``."""
        given = None if self.scorer is None else self.scorer.score_tails(head_index, rel_type)
        seen = None
        if self.filtered_by is not None:
            seen = self.filtered_by.score_tails(head_index, rel_type)
        return self._add(given, seen, head_index, rel_type, "tail")

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all heads for relations ``rel_type`` and tails ``tail_index``."""
        given = None if self.scorer is None else self.scorer.score_heads(rel_type, tail_index)
        seen = None
        if self.filtered_by is not None:
            seen = self.filtered_by.score_heads(rel_type, tail_index)
        return self._add(given, seen, tail_index, rel_type, "head")

    def _add(
        self,
        given: Tensor | None,
        seen: Tensor | None,
        entity: Tensor,
        relation: Tensor,
        side: Side,
    ) -> Tensor:
        if self.weight == 0:
            assert given is not None
            total = given.clone()
        else:
            total = self.weight * self.near(entity, relation, side, self.peers)
            if given is not None:
                total = given + total
        if self.answers is not None and self.frequency:
            total += self.frequency * self.answers(relation, side)
        if seen is not None:
            # No logarithm differs from another by so much; candidates with peers were seen.
            total = total + seen * (1.0 - 2 * self.weight * math.log(FLOOR))
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
    the spread of the score; :math:`\eta` is 0 beside a score of episodes, else their frequency
    times this spread.

    Args:
        scorer (Scorer): The score: that of episodes, or of propagated vectors.
        near (LogProximity): Proximity in the observed graph.
        settings (ProximitySettings): The weights.
        observed (Tensor): Observed triples, whose queries show the spread, ``[m, 3]``.
        trained (Tensor): The training triples, whose loops say which relations have some.
        num_relations (int): Number of relations.
    """
    weight = frequency = 0.0
    if isinstance(scorer, EpisodeScorer | WithVectors):
        weight = settings.weight
    elif len(observed):
        spread = score_spread(scorer, observed.to(near.device))
        weight, frequency = settings.share * spread, settings.frequency * spread
    answers = None
    if frequency:
        answers = AnswerCounts(observed.to(near.device), near.num_nodes, num_relations)
    loops = None
    if settings.own_last:
        loops = relations_with_loops(trained, num_relations).to(near.device)
    return ProximityScorer(
        scorer,
        near,
        weight,
        peers=settings.peers,
        answers=answers,
        frequency=frequency,
        may_loop=loops,
    )


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
