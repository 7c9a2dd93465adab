from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from sheafprop.data import Vocabulary, first_occurrences
from sheafprop.data.finite_rows import check_finite_rows
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import DataError
from sheafprop.kernels.backend import all_finite
from sheafprop.kge import KGEModel
from sheafprop.kge.base import Side
from sheafprop.pretrained.blocks import EntityIndex, FactIndex, RowBlocks
from sheafprop.pretrained.candidate_scorer import CandidateScorer
from sheafprop.pretrained.graph_scorer import GraphScorer, LinkScores, spread_temperature
from sheafprop.pretrained.stored_model import StoredModel, select_entities
from sheafprop.pretrained.triple_input import triple_ids
from sheafprop.query import (
    EnergyScorer,
    EntityScorer,
    GraphExecutor,
    InteriorPrior,
    LinkCalibration,
    LinkProbabilities,
)

if TYPE_CHECKING:
    import pandas as pd

# Probabilities that are held at once.
_NUMBERS = 2**24


@dataclass(frozen=True, eq=False)
class ModelState:
    """The labels, vectors and facts of a trained model and what was added to it.

    Args:
        trained (StoredModel): The model as it was loaded or trained.
        index (EntityIndex): Labels and origins of all entities.
        rows (RowBlocks): Their vectors, ``[n, s, d]`` in blocks.
        facts (FactIndex): The observed triples.
        section_weight (tuple of float): The weight of each section in a score.
    """

    trained: StoredModel
    index: EntityIndex
    rows: RowBlocks
    facts: FactIndex
    section_weight: tuple[float, ...]
    _query_scorers: dict[bool, EnergyScorer] = field(default_factory=dict, init=False)

    @classmethod
    def from_stored(cls, stored: StoredModel) -> "ModelState":
        """The state of a model that was loaded or trained; a repeated fact counts once."""
        first = first_occurrences(stored.facts)
        if not bool(first.all()):  # folders of version 0.1.0 may hold some
            stored = replace(stored, facts=stored.facts[first])
        rows = [stored.model.entity_vectors().detach().unsqueeze(1)]
        if stored.extended is not None and len(stored.extended):
            rows.append(stored.extended)
        return cls(
            stored,
            EntityIndex(stored.entities, stored.origins),
            RowBlocks(rows),
            FactIndex(stored.facts, len(stored.relations)),
            stored.section_weight,
        )

    # Contents -------------------------------------------------------------------------------------

    @property
    def kge(self) -> KGEModel:
        """The trained embedding model."""
        return self.trained.model

    @property
    def relations(self) -> Vocabulary:
        """Labels of the relations."""
        return self.trained.relations

    @cached_property
    def entities(self) -> Vocabulary:
        """Labels of all entities, kept for queries."""
        return self.index.vocabulary()

    @property
    def num_entities(self) -> int:
        """Number of entities with a vector."""
        return len(self.index)

    @property
    def num_trained(self) -> int:
        """Number of entities that the model was trained with."""
        return self.kge.num_nodes

    @property
    def num_sections(self) -> int:
        """Number of vectors of an entity."""
        return len(self.section_weight)

    def vectors(self, ids: Tensor | None = None) -> Tensor:
        """Vectors ``[n, s, d]`` of entities; of all, a view where they lie in one block."""
        rows = self.rows.from_row(0) if ids is None else self.rows.select(ids)
        return rows.expand(-1, self.num_sections, -1)

    def sections(self, entities: Tensor) -> tuple[Iterable[tuple[float, Tensor]], Tensor]:
        """Weight and vectors ``[n, d]`` of each section of entities, and where each entity is."""
        ids, place = torch.unique(entities, return_inverse=True)
        x = self.rows.select(ids)
        weights = self.section_weight if x.shape[1] > 1 else (1.0,)
        return list(zip(weights, x.unbind(1), strict=True)), place

    def added_facts(self) -> Tensor:
        """Facts that touch an added entity; they all came after those of training."""
        facts = self.facts.from_row(self.trained.num_trained_facts)
        return facts[(facts[:, [0, 2]] >= self.num_trained).any(1)]

    def triple_ids(self, triples: LocatedRows) -> Tensor:
        """Ids ``[m, 3]`` of triples of known labels.

        Raises:
            DataError: If a label is unknown.
        """
        return triple_ids(triples, self.index, self.relations)

    def frame(self, triples: Tensor) -> "pd.DataFrame":
        """A frame of triples: ``head``, ``relation``, ``tail``."""
        import pandas as pd

        return pd.DataFrame(
            {
                "head": self.index.labels_of(triples[:, 0]),
                "relation": self.relations.labels_of(triples[:, 1]),
                "tail": self.index.labels_of(triples[:, 2]),
            },
            dtype=str,
        )

    # Scores ---------------------------------------------------------------------------------------

    @cached_property
    def scorer(self) -> CandidateScorer:
        """The scores of all entities as heads or tails, with what it keeps of them."""
        return CandidateScorer(self.kge, self.trained.sheaf, self.rows, self.section_weight)

    @cached_property
    def graph_scorer(self) -> GraphScorer | None:
        """The scores of episodes and proximity, where the model has them."""
        trained = self.trained
        if trained.episodes is None and trained.proximity is None:
            return None
        return GraphScorer(
            trained.episodes,
            trained.proximity,
            self.facts.from_row(0),
            trained.num_trained_facts,
            len(self.relations),
            self.index.vocabulary().labels,
            self._scores_by_vectors,
            int(trained.settings.get("seed", 0)),
        )

    def candidate_scores(self, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Scores ``[B, N]`` of all entities at a side of triples whose other end is ``entity``."""
        if self.graph_scorer is not None:
            return self.graph_scorer.scores(entity, relation, side)
        return self._scores_by_vectors(entity, relation, side)

    def _scores_by_vectors(self, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        return self.scorer.scores(self.rows.select(entity), relation, side)

    @torch.no_grad()
    def score(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        """Scores ``[n]`` of triples by the definition of the score."""
        if self.graph_scorer is not None:
            return self.graph_scorer.score(head, relation, tail)
        sections, place = self.sections(torch.stack([head, tail]))
        parts = [
            weight * self.kge.score_triples(x, place[0], relation, place[1])
            for weight, x in sections
        ]
        return torch.stack(parts).sum(0)

    def check_scores(self, scores: Tensor) -> None:
        """Names the entity, where a vector that is not finite has made scores so."""
        if not all_finite(scores):
            self.check_finite()

    def check_finite(self) -> None:
        """Refuses vectors that are not finite; the first such entity is named."""
        start = 0
        for block in self.rows.blocks:
            if not all_finite(block):
                numbers = torch.arange(start, start + len(block))
                check_finite_rows(block, self.index.vocabulary().labels, "vectors", ids=numbers)
            start += len(block)

    def query_scorer(self, prior: bool) -> EnergyScorer:
        """The scorer of queries, with a prior on the vertices between or without."""
        if prior not in self._query_scorers:
            sheaf, x, facts = self.trained.sheaf, self.vectors(), self.facts.from_row(0)
            if prior and len(facts) == 0:
                raise DataError("a prior needs facts, and the model has none")
            self.check_finite()
            self._query_scorers[prior] = EnergyScorer(
                sheaf,
                x,
                entities=self.entities,
                relations=self.relations,
                section_weight=self.section_weight,
                interior_prior=InteriorPrior.of_facts(sheaf, x, facts) if prior else None,
            )
        return self._query_scorers[prior]

    @cached_property
    def links(self) -> LinkProbabilities:
        """The probability of every link: facts are certain, the scores predict the others."""
        calibration = self.trained.calibration
        return self.link_probabilities(None if calibration is None else calibration.links)

    def link_probabilities(self, calibration: LinkCalibration | None) -> LinkProbabilities:
        """The probability of every link as calibrated; without, at the spread of the scores."""
        self.check_finite()
        facts = self.facts.from_row(0)
        temperature: float | Tensor = 1.0
        if calibration is not None:
            temperature = calibration.temperature
        elif self.trained.episodes is None:
            temperature = spread_temperature(self._scores_by_vectors, self._queries_to_score(facts))
        return LinkProbabilities(
            facts,
            self.num_entities,
            len(self.relations),
            LinkScores(self.candidate_scores),
            temperature=temperature,
            num_answers=1.0 if calibration is None else calibration.num_answers,
            dtype=torch.double if self.rows.blocks[0].real.dtype == torch.double else torch.float32,
        )

    def probability(self, side: Side, given: Tensor, relation: Tensor, other: Tensor) -> Tensor:
        """The probabilities ``[n]`` that relations lead from given entities to others at a side."""
        out = torch.zeros(len(given), dtype=torch.double)
        kinds = relation + len(self.relations) * (side == "head")
        step = max(1, _NUMBERS // self.num_entities)
        for kind in kinds.unique().tolist():
            for own in (kinds == kind).nonzero().flatten().split(step):
                entities, place = given[own].unique(return_inverse=True)
                rows = self.links.log_rows(entities, kind)
                out[own] = rows[place, other[own]].double().exp()
        return out

    def _queries_to_score(self, facts: Tensor) -> Tensor:
        """Pairs of entity and relation: those of facts, or of all entities where there are none."""
        if len(facts):
            return facts[:, :2]
        entities = torch.arange(self.num_entities)
        return torch.stack([entities, entities % max(1, len(self.relations))], dim=1)

    def entity_scorer(self, beam: int | Literal["all"]) -> EntityScorer:
        """The scorer of queries whose vertices between are entities."""
        return EntityScorer(self.links, beam, entities=self.entities, relations=self.relations)

    @cached_property
    def executor(self) -> GraphExecutor:
        """The answers to queries that follow from the facts alone."""
        return GraphExecutor(self.facts.from_row(0), self.num_entities, len(self.relations))

    # Changes --------------------------------------------------------------------------------------

    def rewrite(self, added: Tensor, vectors: Tensor, origins: Sequence[str]) -> "ModelState":
        """A state with other vectors and origins of some added entities; trained ones are shared.

        Args:
            added (Tensor): Their ids, ``[n]``.
            vectors (Tensor): Their vectors, ``[n, s, d]``.
            origins (sequence of str): Where these come from.
        """
        base, rows = self.rows.blocks[0], self.rows.from_row(self.num_trained)
        sections = max(rows.shape[1], vectors.shape[1])
        rows = rows.expand(-1, sections, -1).clone()
        rows[added - self.num_trained] = vectors.expand(-1, sections, -1)
        index = self.index.with_origins(dict(zip(added.tolist(), origins, strict=True)))
        return replace(self, index=index, rows=RowBlocks([base, rows]))

    def stored(self, kept: Tensor | None = None, facts: Tensor | None = None) -> StoredModel:
        """Everything in one place, as a model folder holds it.

        Args:
            kept (Tensor, optional): Entities to keep, bool ``[N]``. (default: all)
            facts (Tensor, optional): The facts to keep, which name no other entity. (default: all)
        """
        model, index = self.kge, self.index
        labels, origins = index.vocabulary().labels, index.origins()
        facts = self.facts.from_row(0) if facts is None else facts
        extended = None
        if self.num_entities > self.num_trained:
            extended = self.rows.from_row(self.num_trained).expand(-1, self.num_sections, -1)
        if kept is not None:
            ids = kept.nonzero().flatten().tolist()
            labels, origins = tuple(labels[i] for i in ids), tuple(origins[i] for i in ids)
            number = torch.cumsum(kept, 0) - 1
            facts = torch.stack([number[facts[:, 0]], facts[:, 1], number[facts[:, 2]]], dim=1)
            trained, added = kept[: self.num_trained], kept[self.num_trained :]
            extended = None if extended is None else extended[added]
            if not bool(trained.all()):
                model = select_entities(model, trained)
        return replace(
            self.trained,
            model=model,
            entities=Vocabulary(labels, kind="entities"),
            origins=origins,
            facts=facts,
            extended=extended,
            section_weight=self.section_weight,
        )
