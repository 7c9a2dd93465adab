"""Variants of the episodes that levers compare with a preset, and their training."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sheafprop.inductive.episode_model import DiffusedGraph, EpisodeModel
from sheafprop.inductive.feature_map import Anchors
from sheafprop.inductive.proximity_scorer import LogProximity, ProximitySettings
from sheafprop.kernels.rows import real_rows
from sheafprop.kge import KGEModel
from sheafprop.kge.base import Side
from sheafprop.sheaf import DiagonalSheaf, RelationSheaf
from sheafprop.training.episode_training import EpisodeTraining, WalkTraining, _fit, _prototypes


class NearEpisodes(EpisodeModel):
    """Proximity in the score of the episodes themselves, with a weight for each query relation."""

    def __init__(self, *arguments: Any, near: ProximitySettings, **more: Any):
        super().__init__(*arguments, **more)
        rows = 2 * self.num_relations
        self.near_settings = near
        self.log_near = torch.nn.Parameter(torch.full((rows,), math.log(near.weight)))

    def diffuse(
        self, triples: Tensor, num_nodes: int, random: Tensor, anchors: Anchors | None = None
    ) -> DiffusedGraph:
        self.near = LogProximity.of_settings(self.near_settings, triples, num_nodes)
        return super().diffuse(triples, num_nodes, random, anchors)

    def score(self, graph: DiffusedGraph, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        query = relation if side == "tail" else relation + self.num_relations
        weight = self.log_near[query].exp().unsqueeze(1)
        return super().score(graph, entity, relation, side) + weight * self.near(
            entity, relation, side
        )


class SeveralDiffusions(EpisodeModel):
    """Several diffusions, each with weights of its own; how each counts depends on the query."""

    def __init__(self, *arguments: Any, number: int = 2, **more: Any):
        super().__init__(*arguments, **more)
        drawn = torch.randn(number, self.num_relations, generator=torch.Generator().manual_seed(9))
        self.log_weights = torch.nn.Parameter(0.5 * drawn)
        for name in ("log_random", "log_prototype", "direction"):
            value = getattr(self, name).detach().repeat_interleave(number, 0)
            if name != "direction":
                value = value - math.log(number)
            setattr(self, name, torch.nn.Parameter(value))
        del self.log_weight

    def diffuse(
        self, triples: Tensor, num_nodes: int, random: Tensor, anchors: Anchors | None = None
    ) -> DiffusedGraph:
        graphs = []
        for weight in self.log_weights:
            self.log_weight = weight
            graphs.append(super().diffuse(triples, num_nodes, random, anchors))
        times = range(len(self.settings.times))
        return graphs[0]._replace(
            prototype=tuple(g.prototype[i] for i in times for g in graphs),
            random=tuple(g.random[i] for i in times for g in graphs),
        )


class ColumnWeights(EpisodeModel):
    r"""Weights of columns: of the score, :math:`\sum_j e^{\gamma_{qj}} |(\delta x)_j|^2` for each
    query relation, and of the diffusion, whose energy counts columns of a relation alike. Maps are
    phases."""

    def __init__(self, *arguments: Any, score: bool = True, diffusion: bool = True, **more: Any):
        super().__init__(*arguments, **more)
        width, times = self.maps.hidden_channels, len(self.settings.times)
        zeros = torch.zeros(times, 2 * self.num_relations, width)
        self.log_score = torch.nn.Parameter(zeros) if score else None
        zeros = torch.zeros(self.num_relations, width)
        self.log_diffusion = torch.nn.Parameter(zeros) if diffusion else None

    def weigh_sheaf(self) -> RelationSheaf:
        if self.log_diffusion is None:
            return super().weigh_sheaf()
        sheaf = self.maps.sheaf()
        assert isinstance(sheaf, DiagonalSheaf)
        assert sheaf.head is not None
        root = ((self.log_diffusion + self.log_weight.unsqueeze(1)) / 2).exp()
        return DiagonalSheaf(sheaf.head * root, root.to(sheaf.head.dtype))

    def score(self, graph: DiffusedGraph, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        if self.log_score is None:
            return super().score(graph, entity, relation, side)
        query = relation if side == "tail" else relation + self.num_relations
        unique, place = torch.unique(query, return_inverse=True)
        total = self._observed(graph, unique)[place]
        for i, (p, x) in enumerate(zip(graph.prototype, graph.random, strict=True)):
            column = self.log_score[i, query].exp().repeat_interleave(2, 1).unsqueeze(1)
            for strength, rows in ((self.log_random, x), (self.log_prototype, p)):
                real = real_rows(rows)
                wanted = self.score_maps.query_vectors(rows[entity], relation, side)
                squares = (column * wanted.square()).flatten(1).sum(1, keepdim=True)
                squares = squares + column.squeeze(1) @ real.square().sum(1).T
                energy = squares - 2 * (column * wanted).flatten(1) @ real.flatten(1).T
                total = total - strength[i, query].exp().unsqueeze(1) / 2 * energy
            total = total + (self.direction[i, unique] @ real_rows(p.squeeze(1)).T)[place]
        return total


def train_variant(
    build: Callable[..., EpisodeModel],
    kge: KGEModel,
    triples: Tensor,
    like: Any,
    entities: Tensor | None = None,
    seed: int = 0,
) -> EpisodeModel:
    """Trains a variant of the episodes as :func:`train_episodes` does."""
    x = kge.entity_vectors().detach() if entities is None else kge.entity_vectors()[entities]
    start = _prototypes(x.detach(), triples, kge.num_relations)
    model = build(kge, start, like, seed)
    training = EpisodeTraining(model, triples, len(x), like.num_steps, seed)
    _fit(training, "episodes", None, (), False)
    if like.walk_steps:
        _fit(WalkTraining(model, triples, len(x), seed), "walk", None, (), False)
    return model.eval()
