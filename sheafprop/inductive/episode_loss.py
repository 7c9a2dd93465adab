import torch
from torch import Tensor

from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.feature_map import Anchors
from sheafprop.kge.base import Side
from sheafprop.ranking.triple_filter import TripleFilter


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

    Args:
        model (EpisodeModel): The model, whose settings say how many triples are hidden and ranked.
        triples (Tensor): All distinct triples of the graph, ``[m, 3]``.
        num_nodes (int): Number of its entities.
        known (TripleFilter): The known triples.
        generator (torch.Generator): Draws the hidden triples and the random sections.
        anchors (Anchors, optional): Where features draw entities to; they are never hidden.
    """
    order = torch.randperm(len(triples), generator=generator)
    hidden = max(1, round(model.settings.hidden_share * len(triples)))
    observed, queries = triples[order[hidden:]], triples[order[:hidden]]
    queries = queries[: model.settings.batch_size]
    random = model.draw_training_sections(num_nodes, generator)
    more = () if anchors is None else (anchors,)
    graph = model.diffuse(observed, num_nodes, random, *more)
    head, relation, tail = queries.unbind(1)
    sides: list[tuple[Side, Tensor, Tensor, tuple[Tensor, Tensor]]] = [
        ("tail", head, tail, known.tails(head, relation)),
        ("head", tail, head, known.heads(relation, tail)),
    ]
    losses = []
    for side, entity, answer, (row, other) in sides:
        scores = model.score(graph, entity, relation, side)
        excluded = other != answer[row]
        mask = torch.zeros_like(scores, dtype=torch.bool)
        mask[row[excluded], other[excluded]] = True
        scores = scores.masked_fill(mask, -torch.inf)
        losses.append(torch.nn.functional.cross_entropy(scores, answer))
    return torch.stack(losses).mean()
