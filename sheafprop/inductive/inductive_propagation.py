from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.data.inductive_data import InductiveData
from sheafprop.data.knowledge_graph import KnowledgeGraph
from sheafprop.inductive.feature_map import Anchors, FeatureMap
from sheafprop.inductive.free_system import FreeSystem
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.section_scorer import KnownRows, SectionScorer
from sheafprop.kge.base import KGEModel
from sheafprop.nn.relation_weights import relation_weights, residual_variance
from sheafprop.nn.sheaf_propagation import SheafPropagation
from sheafprop.nn.start import RelationPrototypes, start_sections
from sheafprop.sheaf import PropagationPlan, RelationSheaf
from sheafprop.sheaf.identity_relation import add_identity_relation


class InductivePropagation:
    r"""Propagates the vectors of a trained model into an inference graph, as in Cobb and Gebhart,
    "Feature Propagation on Knowledge Graphs Using Cellular Sheaves".

    The restriction maps and translations are those of the trained relations. Entities known from
    training, if any, are the boundary. No parameters are trained or changed.

    Args:
        model (KGEModel): The trained model.
        data (InductiveData): Training graph, observed inference graph and boundary.
        settings (PropagationSettings): The settings of the propagation. The number of iterations is
            the default of :meth:`vectors`.
        feature_map (FeatureMap, optional): The map from features to vectors. (default: fitted if
            the data have features)
    """

    _labels: Sequence[str] | None = None
    _known: KnownRows | None = None
    #: Entities of the system without what features draw them to; all of a given one.
    _size: int | None = None

    @torch.no_grad()
    def __init__(
        self,
        model: KGEModel,
        data: InductiveData,
        settings: PropagationSettings,
        feature_map: FeatureMap | None = None,
    ):
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
        #: The map from features to vectors, where the data have features.
        self.feature_map = feature_map
        if feature_map is None and (found := fit_features(data, trained, sheaf)) is not None:
            self.feature_map, _ = found
        if self.feature_map is not None and data.features is not None:
            anchors = self.feature_map.anchors(data.features, system.labels)
            system = system.anchored(anchors, data.num_relations)
        prototypes = None
        if settings.relation_weights or settings.start in ("mixed", "prototype"):
            prototypes = RelationPrototypes.from_triples(
                trained, train_index, train_type, data.num_relations
            )
        self._prepare(
            model,
            system,
            settings,
            sheaf,
            prototypes,
            residual_variance(trained, train_index, train_type, sheaf)
            if settings.relation_weights
            else None,
        )
        self._labels, self._size = data.inference.entities.labels, len(local_known)
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
        """Creates the propagation for a given system.

        Args:
            model, settings: See the class.
            system (FreeSystem): Known vectors, and the facts of free entities.
            sheaf (RelationSheaf): The sheaf of the model.
            prototypes (RelationPrototypes): Mean trained vectors per relation and side.
            variance (Tensor, optional): Mean squared residuals of the relations in training,
                ``[R]``, required if the settings weight relations.
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
        prototypes: RelationPrototypes | None,
        variance: Tensor | None,
    ) -> None:
        self.model, self.settings, self._free = model, settings, ~system.boundary_mask
        x, facts = system.x, system.edge_type < sheaf.num_relations
        graph = system.edge_index[:, facts], system.edge_type[facts]
        weight = None
        if settings.relation_weights:
            assert variance is not None
            assert prototypes is not None
            count = prototypes.count[: prototypes.count.numel() // 2]
            weight = relation_weights(variance, count)[graph[1]]
        self._layer = SheafPropagation(
            settings.iterations,
            step_size=settings.step_size,
            normalization=settings.normalization,
            teleport=settings.teleport,
        )
        num_sections = settings.num_sections
        random = x.new_zeros(x.shape[0], num_sections, x.shape[2])
        random[self._free] = model.draw_entities(system.labels, settings.seed, num_sections).to(x)
        # Without a fact, an entity starts where its features put it.
        source, nodes = system.edge_index[:, ~facts]
        lone = ~torch.isin(nodes, graph[0])
        random[nodes[lone]] = x[source[lone]].expand(-1, num_sections, -1)
        sections = start_sections(
            x,
            system.boundary_mask,
            *graph,
            start=settings.start,
            random=random,
            prototypes=prototypes,
            edge_weight=weight,
        )
        # Where no entity is known, random sections have frames of their own, and features are in
        # that of the trained vectors, as prototypes are.
        wide = 0 if bool(facts.all()) else num_sections
        if wide and bool(facts.any()) and not bool(system.boundary_mask[graph[0]].any()):
            wide = int(settings.start in ("mixed", "prototype"))
        self._runs: list[tuple[PropagationPlan, Tensor]] = []
        if wide:
            whole = system.edge_index, system.edge_type, add_identity_relation(sheaf)
            assert system.edge_weight is not None
            weights = system.edge_weight.to(x.real)
            if weight is not None:
                weights = weights.masked_scatter(facts, weight.to(weights))
            plan = self._layer.plan(x[:, 0], *whole, weights, system.boundary_mask)
            self._runs.append((plan, sections[:, :wide]))
        if wide < num_sections:
            plan = self._layer.plan(x[:, 0], *graph, sheaf, weight, system.boundary_mask)
            self._runs.append((plan, sections[:, wide:]))

    @torch.no_grad()
    def _steps(self, iterations: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Propagates once and yields each count of ``iterations`` with the vectors of the system's
        entities."""
        counts = list(iterations)
        runs = [self._layer.trajectory(plan, part, counts) for plan, part in self._runs]
        for found in zip(*runs, strict=True):
            (count, x), *rest = found
            if rest:
                x = torch.cat([x, *(part for _, part in rest)], dim=1)
            if self.settings.normalize_output:
                x = x.clone()
                x[self._free] = self.model.rescale_entities(x[self._free])
            yield count, x[: self._size]

    def trajectory(self, iterations: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Propagates once and yields each number of ``iterations`` with the vectors ``[N, s, d]``
        after that number of steps."""
        for count, x in self._steps(iterations):
            yield count, x if self._known is None else self._known.join(self._new(x))

    def vectors(self, iterations: int | None = None) -> Tensor:
        """Returns the vectors ``[N, s, d]`` after ``iterations`` steps. (default: the settings)"""
        count = self.settings.iterations if iterations is None else iterations
        ((_, x),) = self.trajectory([count])
        return x

    def scorers(self, iterations: Iterable[int]) -> Iterator[tuple[int, SectionScorer]]:
        """Propagates once and yields each number of ``iterations`` with a scorer of the inference
        graph after that number of steps. Known vectors are not copied."""
        for count, x in self._steps(iterations):
            rows = x if self._known is None else self._new(x)
            yield (
                count,
                SectionScorer(
                    self.model, rows, self.settings.section_weight, self._labels, self._known
                ),
            )

    def _new(self, x: Tensor) -> Tensor:
        return x[self._free[: self._size]]

    def scorer(self, iterations: int | None = None) -> SectionScorer:
        """Returns the scorer of the inference graph after ``iterations`` steps. (default: of the
        settings)"""
        count = self.settings.iterations if iterations is None else iterations
        ((_, scorer),) = self.scorers([count])
        return scorer


def fit_features(
    data: InductiveData, x: Tensor, sheaf: RelationSheaf
) -> tuple[FeatureMap, Anchors] | None:
    """Fits the map from features to the trained vectors ``x`` ``[N, d]``; also returns its
    leave-one-out predictions.

    Returns None if the data have no features.
    """
    if data.features is None:
        return None
    edge_index, edge_type = _edges(data.train, x.device)
    energy = residual_variance(x, edge_index, edge_type, sheaf)[edge_type].double().mean()
    count = torch.bincount(edge_index.flatten(), minlength=len(x))
    assert data.train.entities is not None
    labels = data.train.entities.labels
    return FeatureMap.fit_left_out(
        data.features, x, labels, edge_residual=float(energy), count=count
    )


def _edges(graph: KnowledgeGraph, device: torch.device) -> tuple[Tensor, Tensor]:
    triples = graph.triples.to(device)
    return triples[:, [0, 2]].T, triples[:, 1]
