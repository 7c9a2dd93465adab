"""Scores that see a model's facts as a graph: of episodes, with proximity, or both.

And how probable links are by such scores, or by those of vectors.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.episode_scorer import EpisodeScorer, Scorer, WithVectors, score_spread
from sheafprop.inductive.feature_map import Anchors
from sheafprop.inductive.proximity_scorer import LogProximity, ProximitySettings, add_proximity
from sheafprop.kge.base import Side

CandidateScores = Callable[[Tensor, Tensor, Side], Tensor]
# Entities whose scores are held at once, in numbers.
_SCORES = 2**24
#: Standard deviation, over the candidates, to which scores that are not logarithms are brought.
#: Chosen on validation queries of FB15k-237 at ratios 550 and 175 (docs/results.md).
SPREAD = 1.0
#: Queries that show how far scores spread.
QUERIES = 32


class GraphScorer:
    """Scores all entities at a side of triples, by the model's facts and its trained relations.

    Vectors of episodes belong to the graph as it is: facts that are added move those of known
    entities nearby, too. They are diffused when they are first asked for.

    Args:
        episodes (EpisodeModel, optional): Relations trained through the diffusion; without them
            scores are those of ``base``.
        proximity (ProximitySettings, optional): Proximity beside the scores.
        facts (Tensor): The model's facts, ``[m, 3]``.
        num_trained_facts (int): How many of them, from the first on, it was trained with.
        num_relations (int): Number of its relations.
        labels (sequence of str): The labels of all entities.
        base: Scores ``[B, N]`` of all entities by their vectors, from entities, relations and side.
        seed (int): Seed of the random sections.
        anchors (Anchors, optional): Where features draw the entities to.
    """

    def __init__(
        self,
        episodes: EpisodeModel | None,
        proximity: ProximitySettings | None,
        facts: Tensor,
        num_trained_facts: int,
        num_relations: int,
        labels: tuple[str, ...],
        base: CandidateScores,
        seed: int = 0,
        anchors: Anchors | None = None,
    ):
        self._anchors = anchors
        self.episodes, self.proximity, self.seed = episodes, proximity, seed
        self._facts, self._num_trained = facts, num_trained_facts
        self._num_relations = num_relations
        self._labels, self._base = labels, base

    def block_size(self) -> int:
        """Queries to score at once."""
        return max(1, _SCORES // max(1, len(self._labels)))

    @torch.no_grad()
    def scores(self, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Scores ``[B, N]`` of all entities at a side of triples whose other end is ``entity``."""
        if side == "tail":
            return self._whole.score_tails(entity, relation)
        return self._whole.score_heads(relation, entity)

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all tails for heads ``head_index`` and relations ``rel_type``."""
        return self.scores(head_index, rel_type, "tail")

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all heads for relations ``rel_type`` and tails ``tail_index``."""
        return self.scores(tail_index, rel_type, "head")

    @torch.no_grad()
    def score(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        """Scores ``[n]`` of triples: the mean of those as an answer at either side."""
        out = torch.zeros(len(head), dtype=torch.float64)
        for start in range(0, len(head), self.block_size()):
            rows = slice(start, start + self.block_size())
            place = torch.arange(len(head[rows]))
            tails = self.scores(head[rows], relation[rows], "tail")[place, tail[rows]]
            heads = self.scores(tail[rows], relation[rows], "head")[place, head[rows]]
            out[rows] = (tails.double() + heads.double()) / 2
        return out

    @torch.no_grad()
    def energy_ratio(self, triples: Tensor) -> tuple[Tensor, Tensor]:
        """The energy of triples ``[n, 3]`` in the score of episodes, and its ratio to the mean of
        its relation over the model's facts (NaN where it has none)."""
        energy = self._energy(triples)
        usual = self._usual_energy[triples[:, 1]]
        return energy, torch.where(usual > 0, energy / usual, torch.nan)

    def _energy(self, triples: Tensor) -> Tensor:
        assert self.episodes is not None
        return self.episodes.energy(self._diffused.graph, *triples.unbind(1)).double()

    @cached_property
    def _usual_energy(self) -> Tensor:
        relation = self._facts[:, 1]
        number = torch.bincount(relation, minlength=self._num_relations)
        total = torch.zeros(len(number), dtype=torch.float64)
        total.index_add_(0, relation, self._energy(self._facts))
        return total / number.clamp_min(1)

    @cached_property
    def _own(self) -> Scorer:
        """The score without proximity."""
        vectors = ByVectors(self._base)
        if self.episodes is None:
            return vectors
        share = self.episodes.settings.vector_share
        if not share or not len(self._facts):
            return self._diffused
        return WithVectors(self._diffused, vectors, share, self._facts)

    @cached_property
    def _diffused(self) -> EpisodeScorer:
        assert self.episodes is not None
        return EpisodeScorer(self.episodes, self._facts, self._labels, self.seed, self._anchors)

    @cached_property
    def _whole(self) -> Scorer:
        settings, own = self.proximity, self._own
        if settings is None:
            return own
        walk = None if self.episodes is None else self.episodes.log_walk
        near = LogProximity.of_settings(settings, self._facts, len(self._labels), walk)
        trained, later = self._facts.tensor_split([self._num_trained])
        # Relations that were fitted to later facts have their loops there.
        seen = torch.bincount(trained[:, 1], minlength=self._num_relations) > 0
        trained = torch.cat([trained, later[~seen[later[:, 1]]]])
        return add_proximity(own, near, settings, self._facts, trained, self._num_relations)


class ByVectors:
    """The scores of vectors, as :class:`~sheafprop.inductive.episode_scorer.Scorer` has them.

    Args:
        base: Scores ``[B, N]`` of all entities, from entities, relations and side.
    """

    def __init__(self, base: CandidateScores):
        self._base = base

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        return self._base(head_index, rel_type, "tail")

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        return self._base(tail_index, rel_type, "head")


class LinkScores:
    """The scores of a model, with proximity where it has some, for
    :class:`~sheafprop.query.LinkProbabilities`.

    Proximity is a part of these scores: it must not be added a second time.

    Args:
        scores: Scores ``[B, N]`` of all entities, from entities, relations and side.
    """

    def __init__(self, scores: CandidateScores):
        self._scores = scores

    def score_links(self, entities: Tensor, relation: int, inverse: bool) -> Tensor:
        """Scores ``[n, N]`` of all entities at the other end of a relation."""
        side: Side = "head" if inverse else "tail"
        return self._scores(entities, torch.full_like(entities, relation), side)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def spread_temperature(scores: CandidateScores, queries: Tensor) -> float:
    """The inverse temperature that brings the scores of vectors to one spread over the candidates.

    These are distances, in units that differ from model to model.

    Args:
        scores: Scores ``[B, N]``, without proximity.
        queries (Tensor): Pairs of entity and relation that show the spread, ``[m, 2]``; some of
            them, evenly spaced, are looked at.
    """
    if not len(queries):
        return 1.0
    deviation = score_spread(ByVectors(scores), queries, QUERIES, correction=0)
    # Where all entities are alike, any temperature gives the same.
    return SPREAD / deviation if deviation > 0 else 1.0
