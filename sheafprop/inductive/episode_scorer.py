from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.feature_map import Anchors, FeatureMap
from sheafprop.kge.base import Side
from sheafprop.ranking.triple_filter import TripleFilter

# Scores of entities that are alike differ by so many roundings at most.
_ROUNDING = 8


class Scorer(Protocol):
    """What ranks triples: scores of all entities as tails or heads."""

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor: ...

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor: ...


class EpisodeScorer:
    """Scores triples of a graph by an :class:`EpisodeModel` diffused over its observed triples.

    Args:
        model (EpisodeModel): The trained model.
        triples (Tensor): The observed triples, ``[m, 3]``.
        labels (sequence of str): Labels of the entities, from which random sections are drawn.
        seed (int): Seed of the random sections.
        anchors (Anchors, optional): Where features draw the entities to.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: EpisodeModel,
        triples: Tensor,
        labels: Sequence[str],
        seed: int = 0,
        anchors: Anchors | None = None,
    ):
        self.model = model
        device = model.prototypes.device
        random = model.draw_sections(labels, seed)
        more = () if anchors is None else (anchors,)
        self.graph = model.diffuse(triples.to(device), len(labels), random, *more)

    @torch.no_grad()
    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all tails for heads ``head_index`` and relations ``rel_type``."""
        return self.model.score(self.graph, head_index, rel_type, "tail")

    @torch.no_grad()
    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all heads for relations ``rel_type`` and tails ``tail_index``."""
        return self.model.score(self.graph, tail_index, rel_type, "head")


class WithVectors:
    r"""The score of episodes beside that of vectors, of which some are known from training.

    .. math::
        f(e, q, v) = f_{\text{episodes}}(e, q, v) + \beta f_{\text{vectors}}(e, q, v)

    with :math:`\beta` such that the second term spreads over the candidates ``share`` times as wide
    as the first.

    Args:
        episodes (EpisodeScorer): The score of episodes.
        vectors (Scorer): The score of vectors.
        share (float): See above.
        observed (Tensor): Observed triples, whose queries show the spread, ``[m, 3]``.
    """

    def __init__(self, episodes: EpisodeScorer, vectors: Scorer, share: float, observed: Tensor):
        self.episodes, self.vectors = episodes, vectors
        wide = score_spread(vectors, observed)
        self.weight = share * score_spread(episodes, observed) / wide if wide > 0 else 0.0

    def score_tails(self, head_index: Tensor, rel_type: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all tails for heads ``head_index`` and relations ``rel_type``."""
        scores = self.episodes.score_tails(head_index, rel_type)
        return scores + self.weight * self.vectors.score_tails(head_index, rel_type)

    def score_heads(self, rel_type: Tensor, tail_index: Tensor) -> Tensor:
        """Scores ``[B, N]`` of all heads for relations ``rel_type`` and tails ``tail_index``."""
        scores = self.episodes.score_heads(rel_type, tail_index)
        return scores + self.weight * self.vectors.score_heads(rel_type, tail_index)


def score_by_episodes(
    episodes: EpisodeModel,
    data: InductiveData,
    vectors: Scorer,
    *,
    seed: int = 0,
    feature_map: FeatureMap | None = None,
) -> EpisodeScorer | WithVectors:
    """Returns the score of episodes in the inference graph, beside that of vectors if some of its
    entities are known from training.

    Args:
        episodes (EpisodeModel): The trained model.
        data (InductiveData): The graphs.
        vectors (Scorer): The score of the entities' own vectors.
        seed (int): Seed of the random sections.
        feature_map (FeatureMap, optional): The map from features to vectors.
    """
    assert data.inference.entities is not None
    labels = data.inference.entities.labels
    observed = data.inference.triples.to(episodes.prototypes.device)
    anchors = None
    if feature_map is not None and data.features is not None:
        anchors = feature_map.anchors(data.features, labels)
    scorer = EpisodeScorer(episodes, observed, labels, seed, anchors)
    share = episodes.settings.vector_share
    if share and bool(data.boundary_mask.any()):
        return WithVectors(scorer, vectors, share, observed)
    return scorer


@torch.no_grad()
def score_spread(scorer: Scorer, queries: Tensor, most: int = 200, *, correction: int = 1) -> float:
    """Mean standard deviation of the scores of a query over all entities; zero where these differ
    by rounding alone.

    Args:
        scorer (Scorer): The scorer.
        queries (Tensor): Triples, or their heads and relations, ``[m, 3]`` or ``[m, 2]``; at most
            ``most`` of them, evenly spaced, are looked at.
        correction (int): The degrees of freedom that a deviation loses, as in :func:`torch.std`.
    """
    step = max(1, len(queries) // most)
    head, relation = queries[::step][:most, :2].unbind(1)
    scores = scorer.score_tails(head, relation)
    spread = float(scores.std(1, correction=correction).mean())
    # In the unit of the scores, which differs from model to model.
    rounding = _ROUNDING * torch.finfo(scores.dtype).eps * float(scores.abs().mean())
    return spread if spread > rounding else 0.0


def episode_loss(
    model: EpisodeModel,
    triples: Tensor,
    num_nodes: int,
    known: TripleFilter,
    generator: torch.Generator,
    anchors: Anchors | None = None,
) -> Tensor:
    r"""Hides some triples of a graph, diffuses on the others, and ranks hidden ones.

    The loss is the cross entropy of the true entity among all entities but the other known answers,
    in the mean over both sides. Diffusion and counts see the triples that are not hidden, alone.

    An entity without an observed triple is unlike any to which the model is applied: nothing is
    known of it, unless features are. Unless ``settings.rank_isolated``, the hidden triples of such
    entities are not ranked (if these are all, they are).

    Args:
        model (EpisodeModel): The model, whose settings say how many triples are hidden and ranked.
        triples (Tensor): All distinct triples of the graph, ``[m, 3]``.
        num_nodes (int): Number of its entities.
        known (TripleFilter): The known triples.
        generator (torch.Generator): Draws the hidden triples and the random sections.
        anchors (Anchors, optional): Where features draw entities to; they are never hidden.
    """
    settings = model.settings
    observed, hidden = hide_triples(triples, settings.hidden_share, generator)
    if not settings.rank_isolated:
        known_of = [observed[:, [0, 2]].flatten()]
        known_of += [] if anchors is None else [anchors.nodes.to(observed.device)]
        hidden = _of_entities(hidden, torch.cat(known_of), num_nodes)
    queries = hidden[: settings.batch_size]
    random = model.draw_training_sections(num_nodes, generator)
    more = () if anchors is None else (anchors,)
    graph = model.diffuse(observed, num_nodes, random, *more)
    return rank_hidden(partial(model.score, graph), queries, known)


def hide_triples(
    triples: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Splits triples at random into those that stay and those that are hidden.

    Args:
        triples (Tensor): The triples, ``[m, 3]``.
        share (float): The share of them that is hidden, at least one.
        generator (torch.Generator): Draws them.
    """
    order = torch.randperm(len(triples), generator=generator)
    hidden = max(1, round(share * len(triples)))
    return triples[order[hidden:]], triples[order[:hidden]]


def _of_entities(triples: Tensor, entities: Tensor, num_nodes: int) -> Tensor:
    """The triples both of whose entities are among some; all triples if there is none."""
    among = torch.zeros(num_nodes, dtype=torch.bool, device=triples.device)
    among[entities] = True
    kept = among[triples[:, [0, 2]]].all(1)
    return triples[kept] if bool(kept.any()) else triples


def rank_hidden(
    score: Callable[[Tensor, Tensor, Side], Tensor],
    triples: Tensor,
    known: TripleFilter,
    may_loop: Tensor | None = None,
) -> Tensor:
    """The cross entropy of the true entity of triples, in the mean over both sides.

    Args:
        score: Scores ``[B, N]`` of all entities, from entities, relations and side.
        triples (Tensor): The triples, ``[B, 3]``.
        known (TripleFilter): Known triples; other known answers are not ranked.
        may_loop (Tensor, optional): Relations that have a loop, bool ``[R]``. Of the others, the
            query's own entity is not ranked. (default: it is ranked)
    """
    head, relation, tail = triples.unbind(1)
    sides: list[tuple[Side, Tensor, Tensor, tuple[Tensor, Tensor]]] = [
        ("tail", head, tail, known.tails(head, relation)),
        ("head", tail, head, known.heads(relation, tail)),
    ]
    losses = []
    for side, entity, answer, (row, other) in sides:
        scores = score(entity, relation, side)
        mask = torch.zeros_like(scores, dtype=torch.bool)
        mask[row, other] = True
        if may_loop is not None:
            rows = (~may_loop[relation]).nonzero().flatten()
            mask[rows, entity[rows]] = True
        mask[torch.arange(len(answer), device=mask.device), answer] = False
        losses.append(
            torch.nn.functional.cross_entropy(scores.masked_fill(mask, -torch.inf), answer)
        )
    return torch.stack(losses).mean()
