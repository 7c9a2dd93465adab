from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.inductive.free_system import FreeSystem
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.section_scorer import KnownRows, SectionScorer
from sheafprop.kge.base import KGEModel
from sheafprop.nn.prototypes import RelationPrototypes
from sheafprop.nn.relation_weights import relation_weights, residual_variance
from sheafprop.nn.sheaf_propagation import SheafPropagation
from sheafprop.nn.start import start_sections
from sheafprop.sheaf import RelationSheaf


class InductivePropagation:
    r"""Carries the vectors of a trained model into an inference graph by sheaf propagation.

    The relations' restriction maps and translations are those the model was trained with; the
    entities known from training (if any) are the boundary. No parameter is trained and none is
    changed. The method is that of Cobb and Gebhart, "Feature Propagation on Knowledge Graphs Using
    Cellular Sheaves".

    Args:
        model (KGEModel): The trained model, which draws random starts and knows its lengths.
        data (InductiveData): Training graph, observed inference graph and boundary.
        settings (PropagationSettings): How to propagate; its number of iterations is only what
            :meth:`vectors` takes by default.
    """

    _labels: Sequence[str] | None = None
    _known: KnownRows | None = None

    @torch.no_grad()
    def __init__(self, model: KGEModel, data: InductiveData, settings: PropagationSettings):
        trained, sheaf = model.entity_vectors(), model.sheaf()
        edge_index, edge_type = _edges(data.inference, trained.device)
        train_index, train_type = _edges(data.train, trained.device)
        boundary_mask = data.boundary_mask.to(trained.device)
        known = data.boundary_source.to(trained.device).clamp_min(0)
        assert data.inference.entities is not None
        if data.train.entities is not None:
            check_finite_rows(trained, data.train.entities.labels, "trained vectors")
        # Only facts of free entities move them, so only these and their neighbours take part.
        head, tail = edge_index
        edges = ~(boundary_mask[head] & boundary_mask[tail])
        local = ~boundary_mask
        local[edge_index[:, edges].flatten()] = True
        local_known = boundary_mask[local]
        number = torch.cumsum(local, 0) - 1
        system = FreeSystem(
            torch.where(local_known.unsqueeze(1), trained[known[local]], 0).unsqueeze(1),
            local_known,
            number[edge_index[:, edges]],
            edge_type[edges],
            data.inference.entities.labels_of((~boundary_mask).nonzero()),
        )
        self._prepare(
            model,
            system,
            settings,
            sheaf,
            RelationPrototypes.from_triples(trained, train_index, train_type, data.num_relations),
            residual_variance(trained, train_index, train_type, sheaf)
            if settings.relation_weights
            else None,
        )
        self._labels = data.inference.entities.labels
        if bool(boundary_mask.any()):
            self._known = KnownRows.select(trained, known[boundary_mask], boundary_mask)

    @classmethod
    def from_system(
        cls,
        model: KGEModel,
        system: FreeSystem,
        settings: PropagationSettings,
        *,
        sheaf: RelationSheaf,
        prototypes: RelationPrototypes,
        variance: Tensor | None = None,
    ) -> "InductivePropagation":
        """The propagation into a system that is there already.

        Args:
            model, settings: As above.
            system (FreeSystem): Known vectors, and the facts at free entities.
            sheaf (RelationSheaf): The restriction maps of the model's relations.
            prototypes (RelationPrototypes): Mean trained vectors at each (relation, side).
            variance (Tensor, optional): Mean squared residuals of the relations in training,
                ``[R]``; needed where the settings weigh relations.
        """
        propagation = object.__new__(cls)
        propagation._prepare(model, system, settings, sheaf, prototypes, variance)
        return propagation

    def _prepare(
        self,
        model: KGEModel,
        system: FreeSystem,
        settings: PropagationSettings,
        sheaf: RelationSheaf,
        prototypes: RelationPrototypes,
        variance: Tensor | None,
    ) -> None:
        self.model, self.settings, self._free = model, settings, ~system.boundary_mask
        x, graph = system.x, (system.edge_index, system.edge_type)
        weight = None
        if settings.relation_weights:
            assert variance is not None
            count = prototypes.count[: prototypes.count.numel() // 2]
            weight = relation_weights(variance, count)[system.edge_type]
        self._layer = SheafPropagation(
            settings.iterations,
            step_size=settings.step_size,
            normalization=settings.normalization,
            teleport=settings.teleport,
        )
        self._plan = self._layer.plan(x[:, 0], *graph, sheaf, weight, system.boundary_mask)
        num_sections = settings.num_sections
        random = x.new_zeros(x.shape[0], num_sections, x.shape[2])
        random[self._free] = model.draw_entities(system.labels, settings.seed, num_sections).to(x)
        self._sections = start_sections(
            x,
            system.boundary_mask,
            *graph,
            start=settings.start,
            random=random,
            prototypes=prototypes,
            edge_weight=weight,
        )

    @torch.no_grad()
    def _steps(self, iterations: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Propagates once and yields each count of ``iterations`` with the vectors of the system's
        entities."""
        for count, x in self._layer.trajectory(self._plan, self._sections, iterations):
            if self.settings.normalize_output:
                x = x.clone()
                x[self._free] = self.model.rescale_entities(x[self._free])
            yield count, x

    def trajectory(self, iterations: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Propagates once and yields each count of ``iterations`` with the vectors ``[N, s, d]``
        after so many steps."""
        for count, x in self._steps(iterations):
            yield count, x if self._known is None else self._known.join(x[self._free])

    def vectors(self, iterations: int | None = None) -> Tensor:
        """The vectors ``[N, s, d]`` after ``iterations`` steps. (default: those of the settings)"""
        count = self.settings.iterations if iterations is None else iterations
        ((_, x),) = self.trajectory([count])
        return x

    def scorers(self, iterations: Iterable[int]) -> Iterator[tuple[int, SectionScorer]]:
        """Propagates once and yields each count of ``iterations`` with what scores triples of the
        inference graph after so many steps. Known vectors are not copied."""
        for count, x in self._steps(iterations):
            rows = x if self._known is None else x[self._free]
            yield (
                count,
                SectionScorer(
                    self.model, rows, self.settings.section_weight, self._labels, self._known
                ),
            )

    def scorer(self, iterations: int | None = None) -> SectionScorer:
        """Scores triples of the inference graph after ``iterations`` steps. (default: those of the
        settings)"""
        count = self.settings.iterations if iterations is None else iterations
        ((_, scorer),) = self.scorers([count])
        return scorer


def _edges(graph: KnowledgeGraph, device: torch.device) -> tuple[Tensor, Tensor]:
    triples = graph.triples.to(device)
    return triples[:, [0, 2]].T, triples[:, 1]
