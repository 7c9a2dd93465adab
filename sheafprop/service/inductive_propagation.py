from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.kge.base import KGEModel
from sheafprop.nn.prototypes import RelationPrototypes
from sheafprop.nn.relation_weights import relation_weights, residual_variance
from sheafprop.nn.sheaf_propagation import SheafPropagation
from sheafprop.nn.start import start_sections
from sheafprop.service.propagation_settings import PropagationSettings
from sheafprop.service.section_scorer import SectionScorer


class InductivePropagation:
    r"""Carries the vectors of a trained model into an inference graph by sheaf propagation.

    The relations' restriction maps and translations are those the model was trained with; the
    entities known from training (if any) are the boundary. No parameter is trained and none is
    changed.

    Args:
        model (KGEModel): The trained model.
        data (InductiveData): Training graph, observed inference graph and boundary.
        settings (PropagationSettings): How to propagate; its number of iterations is only what
            :meth:`vectors` takes by default.
    """

    @torch.no_grad()
    def __init__(self, model: KGEModel, data: InductiveData, settings: PropagationSettings):
        self.model, self.settings = model, settings
        graph = data.inference
        trained = model.entity_vectors()
        device = trained.device
        sheaf = model.sheaf()
        edge_index, edge_type = _edges(graph, device)
        train_index, train_type = _edges(data.train, device)
        self.boundary_mask = data.boundary_mask.to(device)
        weight = None
        if settings.relation_weights:
            count = torch.bincount(train_type, minlength=data.num_relations)
            variance = residual_variance(trained, train_index, train_type, sheaf)
            weight = relation_weights(variance, count)[edge_type]
        self._layer = SheafPropagation(
            settings.iterations,
            step_size=settings.step_size,
            normalization=settings.normalization,
            teleport=settings.teleport,
        )
        known = data.boundary_source.to(device).clamp_min(0)
        x = torch.where(self.boundary_mask.unsqueeze(1), trained[known], 0)
        self._plan = self._layer.plan(x, edge_index, edge_type, sheaf, weight, self.boundary_mask)
        assert graph.entities is not None
        random = model.draw_entities(
            graph.entities.labels, settings.seed, settings.num_sections
        ).to(x)
        self._sections = start_sections(
            x.unsqueeze(1),
            self.boundary_mask,
            edge_index,
            edge_type,
            start=settings.start,
            num_sections=settings.num_sections,
            prototypes=RelationPrototypes.from_triples(
                trained, train_index, train_type, data.num_relations
            ),
            edge_weight=weight,
            random=random,
        )

    @property
    def num_isolated(self) -> int:
        """Free entities without a triple: they keep their start."""
        return int(self._plan.isolated.sum())

    @property
    def components_without_boundary(self) -> int:
        """Components that no known entity anchors."""
        return self._plan.components_without_boundary

    @torch.no_grad()
    def trajectory(self, iterations: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Propagates once and yields each count with the vectors ``[N, s, d]`` after it."""
        for count, x in self._layer.trajectory(self._plan, self._sections, iterations):
            if self.settings.normalize_output:
                free = ~self.boundary_mask
                x = x.clone()
                x[free] = self.model.rescale_entities(x[free])
            yield count, x

    def vectors(self, iterations: int | None = None) -> Tensor:
        """The vectors ``[N, s, d]`` after so many steps."""
        count = self.settings.iterations if iterations is None else iterations
        ((_, x),) = self.trajectory([count])
        return x

    def scorer(self, x: Tensor) -> SectionScorer:
        """Scores triples of the inference graph under vectors of :meth:`trajectory`."""
        return SectionScorer(self.model, x, self.settings.section_weight)


def _edges(graph: KnowledgeGraph, device: torch.device) -> tuple[Tensor, Tensor]:
    triples = graph.triples.to(device)
    return triples[:, [0, 2]].T, triples[:, 1]
