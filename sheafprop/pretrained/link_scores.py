"""How probable the links between a model's entities are, by its facts and its own scores."""

import torch
from torch import Tensor

from sheafprop.inductive.episode_scorer import score_spread
from sheafprop.kge.base import Side
from sheafprop.pretrained.graph_scorer import ByVectors, CandidateScores

#: Standard deviation, over the candidates, to which scores that are no logarithms are brought.
SPREAD = 2.5
#: Queries that show how far scores spread.
QUERIES = 32


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
    return SPREAD / deviation if deviation > 1e-12 else 1.0
