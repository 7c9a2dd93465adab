"""Trains the weights that relations have in the walk of proximity."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sheafprop.inductive.episode_scorer import hide_triples, rank_hidden
from sheafprop.inductive.proximity_scorer import FLOOR
from sheafprop.kernels.coupling import needs_gradient
from sheafprop.kge.base import Side
from sheafprop.nn.relation_proximity import RelationProximity
from sheafprop.ranking.triple_filter import TripleFilter

#: Fraction of the triples that a step hides, and the most of them that it ranks.
HIDDEN_SHARE, BATCH_SIZE = 0.25, 200
#: Numbers that walks keep for their derivative, at most: 1 GB in single precision.
MOST_NUMBERS = 2**28
# Vectors that each step of a walk keeps for its derivative, at most.
_KEPT = 3


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
    entity, in the mean over both sides. It is differentiable once; walks that would keep more than
    1 GB for their derivative are taken in parts.

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
    queries = hidden[:BATCH_SIZE]

    def loss(weight: Tensor, part: Tensor) -> Tensor:
        def score(entity: Tensor, relation: Tensor, side: Side) -> Tensor:
            query = relation if side == "tail" else relation + num_relations
            # A common factor changes no walk: so weighed, no logarithm is too large for its weight.
            return (walk(entity, weight[query].softmax(1)) + FLOOR).log()

        return len(part) / len(queries) * rank_hidden(score, part, known, may_loop)

    kept = 2 * num_nodes * _KEPT * walk.num_iterations
    # Equal parts, since memory that tensors leave is best used by others of the same size.
    parts = queries.chunk(math.ceil(len(queries) * kept / MOST_NUMBERS))
    if needs_gradient(log_weight):
        return _SumOfParts.apply(loss, parts, log_weight)
    return torch.stack([loss(log_weight, part) for part in parts]).sum()


class _SumOfParts(torch.autograd.Function):
    """The sum of a function of each part, whose derivative is taken before the next one begins."""

    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[[Tensor, Tensor], Tensor],
        parts: Sequence[Tensor],
        weight: Tensor,
    ) -> Tensor:
        total, gradient = weight.new_zeros(()), torch.zeros_like(weight)
        for part in parts:
            with torch.enable_grad():
                own = weight.detach().requires_grad_()
                value = function(own, part)
            gradient += torch.autograd.grad(value, own)[0]
            total += value.detach()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        return None, None, grad * ctx.saved_tensors[0]
