"""Trains the weights that relations have in the walk of proximity."""

import torch
from torch import Tensor

from sheafprop.inductive.episode_scorer import hide_triples, rank_hidden
from sheafprop.inductive.proximity_scorer import FLOOR
from sheafprop.kge.base import Side
from sheafprop.nn.relation_proximity import RelationProximity
from sheafprop.ranking.triple_filter import TripleFilter

#: Fraction of the triples that a step hides, and the most of them that it ranks.
HIDDEN_SHARE, BATCH_SIZE = 0.25, 200


def walk_loss(
    log_weight: Tensor,
    triples: Tensor,
    num_nodes: int,
    known: TripleFilter,
    may_loop: Tensor,
    generator: torch.Generator,
) -> Tensor:
    r"""Hides some triples of a graph and ranks them by walks on the others.

    The score of a candidate is :math:`\log(\pi_{e, q}(v) + 10^{-6})`, with the walk of
    :class:`~sheafprop.nn.RelationProximity`. The loss is the cross entropy of the true entity among
    all entities but the other known answers and, where the relation has no loop, the query's own
    entity, in the mean over both sides.

    Args:
        log_weight (Tensor): :math:`\log w_{q, r}`, ``[2R, R]``.
        triples (Tensor): All distinct triples of the graph, ``[m, 3]``.
        num_nodes (int): Number of its entities.
        known (TripleFilter): The known triples.
        may_loop (Tensor): Relations that have a loop, bool ``[R]``.
        generator (torch.Generator): Draws the hidden triples.
    """
    num_relations = log_weight.shape[1]
    observed, hidden = hide_triples(triples, HIDDEN_SHARE, generator)
    walk = RelationProximity(observed[:, [0, 2]].T, observed[:, 1], num_nodes, num_relations)

    def score(entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        query = relation if side == "tail" else relation + num_relations
        # A common factor changes no walk: so weighed, no logarithm is too large for its weight.
        return (walk(entity, log_weight[query].softmax(1)) + FLOOR).log()

    return rank_hidden(score, hidden[:BATCH_SIZE], known, may_loop)
