"""Weights of proximity beside the score of episodes, by the likelihood of hidden triples."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sheafprop.data.splits import hold_out_mask
from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.episode_scorer import EpisodeScorer, Scorer
from sheafprop.inductive.proximity_scorer import LogProximity, ProximitySettings
from sheafprop.kge.base import Side
from sheafprop.ranking.triple_filter import TripleFilter

#: Standard deviation, a priori, of the logarithm of a relation's weight around the common one.
PRIOR = 0.5
# Numbers of one table of scores: so many queries are asked that it stays below.
_MOST = 2**21


class HiddenQueries(NamedTuple):
    """Queries whose answers were hidden from a graph, and what is known of all entities.

    Args:
        score (Tensor): The score of episodes ``[B, N]``; other known answers have ``-inf``.
        near (Tensor): The logarithm of proximity ``[B, N]``, with that of peers at its share.
        query (Tensor): The relation, or that plus the number of relations for heads, ``[B]``.
        answer (Tensor): The hidden entity, ``[B]``.
        triple (Tensor): The number of the hidden triple, ``[B]``.
    """

    score: Tensor
    near: Tensor
    query: Tensor
    answer: Tensor
    triple: Tensor


@torch.no_grad()
def score_hidden(
    model: EpisodeModel,
    triples: Tensor,
    settings: ProximitySettings,
    *,
    share: float = 0.2,
    seed: int = 0,
    beside: Callable[[Tensor, EpisodeScorer, int], Scorer] | None = None,
) -> HiddenQueries:
    """Hides triples of a graph, diffuses over the others, and scores the hidden ones' queries.

    Args:
        model (EpisodeModel): The trained model.
        triples (Tensor): Distinct triples of the graph, whose entities are numbered from 0 on.
        settings (ProximitySettings): The walk, and the share of peers.
        share (float): Share of the triples that are hidden; every entity keeps one.
        seed (int): Seed of the draw and of the random sections.
        beside (callable, optional): Makes the scorer that is taken, from the observed triples, the
            scorer of episodes and the seed. (default: the scorer of episodes)
    """
    num_nodes = int(triples[:, [0, 2]].max()) + 1
    mask = hold_out_mask(triples, fraction=share, seed=seed)
    number = mask.nonzero().flatten()
    most = max(1, _MOST // (2 * num_nodes))
    if len(number) > most:
        number = number[:: -(-len(number) // most)]
    scorer = EpisodeScorer(model, triples[~mask], [str(i) for i in range(num_nodes)], seed)
    taken = scorer if beside is None else beside(triples[~mask], scorer, seed)
    near = LogProximity.of_settings(settings, triples[~mask], num_nodes, model.log_walk)
    known = TripleFilter({"all": triples}, num_nodes, model.num_relations)
    head, relation, tail = triples[number].unbind(1)
    sides: list[tuple[Side, Tensor, Tensor, tuple[Tensor, Tensor]]] = [
        ("tail", head, tail, known.tails(head, relation)),
        ("head", tail, head, known.heads(relation, tail)),
    ]
    scores, nears = [], []
    for side, entity, answer, (row, other) in sides:
        if side == "tail":
            score = taken.score_tails(entity, relation)
        else:
            score = taken.score_heads(relation, entity)
        excluded = other != answer[row]
        score[row[excluded], other[excluded]] = -torch.inf
        scores.append(score)
        nears.append(near(entity, relation, side, settings.peers))
    return HiddenQueries(
        torch.cat(scores),
        torch.cat(nears),
        torch.cat([relation, relation + model.num_relations]),
        torch.cat([tail, head]),
        torch.cat([number, number]),
    )


def fit_weights(
    parts: Sequence[HiddenQueries], num_queries: int, *, prior: float = PRIOR
) -> Tensor:
    r"""Returns the weights ``[Q]`` of proximity that make the hidden answers most likely.

    With the score :math:`f` and the logarithm of proximity :math:`g`, the likelihood of an answer
    is a softmax over the candidates of

    .. math::
        \tau f(e, q, v) + \lambda e^{l_q} g(e, v)

    and :math:`l_q` has a normal prior of mean 0. Returned is :math:`\lambda e^{l_q} / \tau`, which
    ranks alike beside :math:`f`. A triple that was hidden in several draws counts once.

    Args:
        parts (sequence of HiddenQueries): Draws of hidden triples.
        num_queries (int): Number of relations and their inverses :math:`Q`.
        prior (float): Standard deviation of the prior; 0 for one common weight.
    """
    count = sum(len(part.answer) for part in parts)
    distinct = 2 * len(torch.unique(torch.cat([part.triple for part in parts])))
    scale = distinct / count
    # (log tau, log lambda), then the deviations in units of the prior.
    common = torch.tensor([0.0, -1.0], requires_grad=True)
    own = torch.zeros(num_queries, requires_grad=prior > 0)
    free = [common, own] if prior > 0 else [common]
    # An excluded score of -inf would have no derivative by tau.
    excluded = [part.score.isneginf() for part in parts]
    tables = [p.score.masked_fill(mask, 0) for p, mask in zip(parts, excluded, strict=True)]
    optimizer = torch.optim.LBFGS(free, max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = own.square().sum() / 2
        for part, table, mask in zip(parts, tables, excluded, strict=True):
            weight = (common[1] + prior * own[part.query]).exp().unsqueeze(1)
            scores = common[0].exp() * table + weight * part.near
            scores = scores.masked_fill(mask, -torch.inf)
            entropy = torch.nn.functional.cross_entropy(scores, part.answer, reduction="sum")
            total = total + scale * entropy
        total = total / distinct
        total.backward()
        return total

    optimizer.step(closure)
    return (common[1] - common[0] + prior * own).exp().detach()
