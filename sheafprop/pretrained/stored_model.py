from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from sheafprop.data import KnowledgeGraph, Vocabulary, first_occurrences
from sheafprop.data.features import FeatureTable
from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.errors import DivergenceError
from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.extension_solver import ExtensionSolver
from sheafprop.inductive.feature_map import FeatureMap
from sheafprop.inductive.proximity_scorer import ProximitySettings
from sheafprop.kge import KGEModel, build_model
from sheafprop.kge.base import TableSummary
from sheafprop.nn import RelationPrototypes
from sheafprop.nn.relation_weights import residual_variance
from sheafprop.pretrained.entity_features import EntityFeatures
from sheafprop.pretrained.model_calibration import ModelCalibration
from sheafprop.sheaf import RelationSheaf

#: Where the vector of an entity can come from.
ORIGINS = ("trained", "extended", "unanchored")


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelHead:
    """All of a trained model but its entities and facts.

    Args:
        model (KGEModel): The model with its trained parameters; its entity table may be elsewhere,
            and is on the device ``meta`` then.
        relations (Vocabulary): Labels of its relations.
        prototypes (RelationPrototypes): Mean trained vectors at each (relation, side).
        residual_variance (Tensor): Mean squared residual of every relation in training, ``[R]``;
            zero for relations without facts.
        settings (dict): The chosen propagation, as plain values.
        metrics (dict): What was measured, as plain values.
        section_weight (tuple of float): The weight of each section in a score.
        episodes (EpisodeModel, optional): Relations trained through the diffusion, which score
            instead of the vectors.
        proximity (ProximitySettings, optional): Proximity beside the scores.
        calibration (ModelCalibration, optional): What turns scores into probabilities.
        features (EntityFeatures, optional): The map from features of entities to vectors.
        num_fitted_relations (int): How many relations, the last ones, were not trained but fitted
            to facts that came later.

    Raises:
        ValueError: If the parts do not match.
        DivergenceError: If a parameter is not finite; names the relation.
    """

    model: KGEModel
    relations: Vocabulary
    prototypes: RelationPrototypes
    residual_variance: Tensor
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    section_weight: tuple[float, ...] = (1.0,)
    episodes: EpisodeModel | None = None
    proximity: ProximitySettings | None = None
    calibration: ModelCalibration | None = None
    features: EntityFeatures | None = None
    num_fitted_relations: int = 0

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_parameters()

    def head(self) -> "ModelHead":
        """The parts of a model that are listed above."""
        return ModelHead(**{part.name: getattr(self, part.name) for part in fields(ModelHead)})

    @property
    def num_trained_relations(self) -> int:
        """How many relations, the first ones, the model was trained with."""
        return len(self.relations) - self.num_fitted_relations

    def relation_origins(self) -> list[str]:
        """Where the parameters of each relation come from: ``"trained"`` or ``"fitted"``."""
        return ["trained"] * self.num_trained_relations + ["fitted"] * self.num_fitted_relations

    @cached_property
    def sheaf(self) -> RelationSheaf:
        """The sheaf of the trained relations."""
        with torch.no_grad():
            return self.model.sheaf()

    @cached_property
    def solver(self) -> ExtensionSolver:
        """The solver of new vectors."""
        return ExtensionSolver(self.model, self.sheaf, self.prototypes, self.residual_variance)

    @cached_property
    def has_unit_rows(self) -> bool:
        """Whether the model trains with entities of length one."""
        return self.model.has_unit_rows()

    def _check_sizes(self) -> None:
        model, number = self.model, len(self.relations)
        if model.num_relations != number:
            raise ValueError(
                "vectors and labels must have the same relations "
                f"(got {model.num_relations} and {number})"
            )
        if not 0 <= self.num_fitted_relations < max(1, number):
            raise ValueError(
                f"of {number} relations some must be trained (got {self.num_fitted_relations} that "
                "are not)"
            )
        num_ends, width = 2 * number, model.hidden_channels
        for name, tensor, shape in (
            ("prototypes.mean", self.prototypes.mean, [num_ends, width]),
            ("prototypes.count", self.prototypes.count, [num_ends]),
            ("residual_variance", self.residual_variance, [number]),
        ):
            if list(tensor.shape) != shape:
                raise ValueError(f"the shape of {name} must be {shape} (got {list(tensor.shape)})")
        if self.calibration is not None:
            fitted = len(self.calibration.links.temperature)
            if fitted != num_ends:
                raise ValueError(f"the calibration must be of {num_ends} ends (got {fitted})")
        if self.features is not None and self.features.target.shape[1] != width:
            raise ValueError(
                f"the features must lead to {width} columns (got {self.features.target.shape[1]})"
            )
        weights: Sequence[float] = self.section_weight
        if not weights or not all(0 < w <= 1 for w in weights) or abs(sum(weights) - 1) > 1e-6:
            raise ValueError(f"'section_weight' must be positive and add up to 1 (got {weights})")

    def _check_parameters(self) -> None:
        if self.features is not None:
            for value in self.features.tensors().values():
                if not bool(torch.isfinite(value).all()):
                    raise DivergenceError("the map of the features is not finite")
        if self.episodes is not None:
            state = self.episodes.stored()["state"]
            if not all(bool(torch.isfinite(value).all()) for value in state.values()):
                raise DivergenceError("a parameter of the episodes is not finite")
        relations = self.relations.labels
        own = {k: v for k, v in self.model.state_dict().items() if k != "node_emb.weight"}
        check_finite(own, (), relations)
        for name, table in (
            ("the mean vectors", self.prototypes.mean.unflatten(0, (2, -1)).transpose(0, 1)),
            ("the residual variances", self.residual_variance.unsqueeze(1)),
        ):
            check_finite_rows(table, relations, name, kind="relation")


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredModel(ModelHead):
    """The contents of a model folder in memory: a trained model with all data that propagation
    requires.

    Trained entities have the first ids, followed by added ones. Of ``model``, ``relations``,
    ``prototypes``, ``residual_variance``, ``settings``, ``metrics``, ``section_weight``,
    ``episodes``, ``proximity``, ``calibration``, ``features`` and ``num_fitted_relations``, see
    :class:`ModelHead`.

    Args:
        entities (Vocabulary): Labels of the trained and of the added entities.
        origins (tuple of str): The origin of the vector of each entity: ``"trained"``,
            ``"extended"``, or ``"unanchored"`` if it is not connected to a trained entity.
        facts (Tensor): The observed triples ``(head, relation, tail)``, int64 ``[m, 3]``.
        extended (Tensor, optional): Vectors of the added entities, ``[n, s, d]``.

    Raises:
        ValueError: If the parts do not match.
        DivergenceError: If a parameter or vector is not finite; the message names the entity or
            relation.
    """

    entities: Vocabulary
    origins: tuple[str, ...]
    facts: Tensor
    extended: Tensor | None = None

    def __post_init__(self) -> None:
        KnowledgeGraph.from_triples(
            self.facts, num_nodes=len(self.entities), num_relations=len(self.relations)
        )
        super().__post_init__()
        self._check_entities()
        self._check_origins()
        self._check_vectors()

    @classmethod
    @torch.no_grad()
    def from_training(
        cls,
        model: KGEModel,
        entities: Vocabulary,
        relations: Vocabulary,
        facts: Tensor,
        *,
        settings: dict[str, Any] | None = None,
        metrics: dict[str, Any] | None = None,
        episodes: EpisodeModel | None = None,
        proximity: ProximitySettings | None = None,
        features: FeatureTable | None = None,
        feature_map: FeatureMap | None = None,
    ) -> "StoredModel":
        """Builds a model with trained entities only, with prototypes and variances from its facts.

        Repeated facts count once. With ``features``, the map from features to vectors is fitted
        unless ``feature_map`` is given.
        """
        sizes = {
            "entities": (model.num_nodes, len(entities)),
            "relations": (model.num_relations, len(relations)),
        }
        for kind, (got, labels) in sizes.items():
            if got != labels:
                raise ValueError(
                    f"model and labels must have the same {kind} (got {got} and {labels})"
                )
        KnowledgeGraph.from_triples(facts, num_nodes=len(entities), num_relations=len(relations))
        check_finite(model.state_dict(), entities.labels, relations.labels)
        x, sheaf = model.entity_vectors(), model.sheaf()
        facts = facts[first_occurrences(facts).to(facts.device)]
        head, edge_type, tail = facts.to(x.device).unbind(1)
        edge_index = torch.stack([head, tail])
        variance = residual_variance(x, edge_index, edge_type, sheaf)
        mapped = None
        if features is not None and feature_map is None:
            residual = float(variance[edge_type].double().mean()) if len(facts) else 0.0
            number = torch.bincount(edge_index.flatten(), minlength=len(entities))
            feature_map = FeatureMap.fit(
                features, x, entities.labels, edge_residual=residual, count=number
            )
        if feature_map is not None:
            mapped = EntityFeatures.of_map(feature_map, x)
            drawn = episodes is not None and episodes.log_gamma is not None
            if features is not None and drawn:
                mapped = mapped.add(features, entities.labels)  # to which all are diffused
        return cls(
            model=model,
            entities=entities,
            relations=relations,
            origins=("trained",) * len(entities),
            facts=facts,
            prototypes=RelationPrototypes.from_triples(
                x, edge_index, edge_type, model.num_relations
            ),
            residual_variance=variance,
            features=mapped,
            settings=settings or {},
            metrics=metrics or {},
            episodes=episodes,
            proximity=proximity,
        )

    @cached_property
    def num_trained_facts(self) -> int:
        """Number of facts before the first fact of an added entity or a fitted relation."""
        added = (self.facts[:, [0, 2]] >= self.model.num_nodes).any(1)
        added |= self.facts[:, 1] >= self.num_trained_relations
        return int(added.to(torch.uint8).argmax()) if bool(added.any()) else len(added)

    def _check_entities(self) -> None:
        model, num_added = self.model, 0 if self.extended is None else len(self.extended)
        if model.num_nodes + num_added != len(self.entities):
            raise ValueError(
                "vectors and labels must have the same entities "
                f"(got {model.num_nodes + num_added} and {len(self.entities)})"
            )
        if self.extended is not None:
            shape = [num_added, len(self.section_weight), model.hidden_channels]
            if list(self.extended.shape) != shape or (
                self.extended.is_complex() != model.is_complex
            ):
                raise ValueError(
                    f"the vectors of the added entities must be {shape} and "
                    f"{'complex' if model.is_complex else 'real'} "
                    f"(got {list(self.extended.shape)}, {self.extended.dtype})"
                )

    def _check_origins(self) -> None:
        num_trained = self.model.num_nodes
        first, rest = self.origins[:num_trained], self.origins[num_trained:]
        wrong = [o for o in first if o != "trained"] + [o for o in rest if o not in ORIGINS[1:]]
        if len(self.origins) != len(self.entities) or wrong:
            raise ValueError(
                f"'origins' must be 'trained' for the first {num_trained} entities and one of "
                f"{', '.join(map(repr, ORIGINS[1:]))} for the {len(self.entities) - num_trained} "
                f"others (got {len(self.origins)} of them{f', {wrong[0]!r}' if wrong else ''})"
            )

    def _check_vectors(self) -> None:
        entities = self.entities.labels
        table = {"node_emb.weight": self.model.node_emb.weight}
        check_finite(table, entities, ())
        if self.extended is not None:
            numbers = torch.arange(self.model.num_nodes, len(entities))
            check_finite_rows(self.extended, entities, "vectors of added entities", ids=numbers)


def select_entities(model: KGEModel, kept: Tensor) -> KGEModel:
    """The model with some of its entities only, given as ids ``[n]`` or bool ``[N]``."""
    return _with_weight(model, model.state_dict()["node_emb.weight"][kept])


def without_table(
    model: KGEModel, num_nodes: int, rows: Callable[[], Iterable[Tensor]]
) -> KGEModel:
    """The model with its table elsewhere: on the device ``meta`` here.

    Args:
        model (KGEModel): The model, with a table or without.
        num_nodes (int): How many entities the table has.
        rows: Returns the rows of the table, in parts; they are read when first needed.
    """
    own = model.node_emb.weight
    bare = _with_weight(model, torch.empty(num_nodes, own.shape[1], dtype=own.dtype, device="meta"))
    bare.summarize_table = cache(lambda: TableSummary.of(rows()))
    return bare


def with_table(model: KGEModel, vectors: Tensor) -> KGEModel:
    """The model with the vectors ``[n, d]`` of its entities as its table, which is not copied."""
    rows = torch.view_as_real(vectors).flatten(1) if vectors.is_complex() else vectors
    return _with_weight(model, rows)


def _with_weight(model: KGEModel, rows: Tensor) -> KGEModel:
    """A model with a table of its own, which is not copied, and the other parameters of another."""
    with torch.device("meta"):
        other = build_model(model.name, **model.config() | {"num_nodes": len(rows)})
    other.load_state_dict(model.state_dict() | {"node_emb.weight": rows}, assign=True)
    return other


def check_finite(
    tensors: dict[str, Tensor], entities: Sequence[str], relations: Sequence[str]
) -> None:
    """Refuses parameters that are not finite, by the entity or relation that a row belongs to."""
    for name, value in tensors.items():
        of_entities = name == "node_emb.weight"
        labels, kind = (entities, "entity") if of_entities else (relations, "relation")
        check_finite_rows(value.detach(), labels, f"the parameter '{name}'", kind=kind)
