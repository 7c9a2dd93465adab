from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from sheafprop.data import Vocabulary, first_occurrences
from sheafprop.data.finite_rows import check_finite_parts
from sheafprop.data.text_rows import LocatedRows
from sheafprop.errors import DataError
from sheafprop.inductive.section_scorer import CandidateScorer
from sheafprop.kernels.backend import all_finite
from sheafprop.kge import KGEModel
from sheafprop.kge.base import Side
from sheafprop.pretrained.blocks import RowBlocks
from sheafprop.pretrained.entity_index import EntityIndex
from sheafprop.pretrained.fact_index import FactAnswers, FactExecutor, FactIndex
from sheafprop.pretrained.graph_scorer import QUERIES, GraphScorer, LinkScores, spread_temperature
from sheafprop.pretrained.stored_model import ModelHead, StoredModel, with_table, without_table
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

# Probabilities that are held at once, and numbers of vectors that are looked at at once.
_NUMBERS = 2**24
_PIECE = 2**22


@dataclass(frozen=True, eq=False)
class ModelState:
    """The labels, vectors and facts of a trained model and what was added to it.

    Args:
        trained (ModelHead): The model as it was loaded or trained, without entities and facts.
        index (EntityIndex): Labels and origins of all entities.
        rows (RowBlocks): Their vectors, ``[n, s, d]`` in blocks.
        facts (FactIndex): The observed triples.
        section_weight (tuple of float): The weight of each section in a score.
        num_trained_facts (int): Facts of training; those that were added come after them.
    """

    trained: ModelHead
    index: EntityIndex
    rows: RowBlocks
    facts: FactIndex
    section_weight: tuple[float, ...]
    num_trained_facts: int
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
            stored.head(),
            EntityIndex(stored.entities, stored.origins),
            RowBlocks(rows),
            FactIndex(stored.facts),
            stored.section_weight,
            stored.num_trained_facts,
        )

    @property
    def is_mapped(self) -> bool:
        """Whether the trained table lies in mapped files."""
        return any(file is not None for file in self.rows.files)

    # Contents -------------------------------------------------------------------------------------

    @property
    def kge(self) -> KGEModel:
        """The trained embedding model, whose entity table may be elsewhere: in ``rows``."""
        return self.trained.model

    @cached_property
    def whole_kge(self) -> KGEModel:
        """The trained embedding model with its table: a copy where that lies in several blocks."""
        if not self.kge.node_emb.weight.is_meta:
            return self.kge
        return with_table(self.kge, self.rows.trained().from_row(0)[:, 0])

    @property
    def relations(self) -> Vocabulary:
        """Labels of the relations."""
        return self.trained.relations

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
        facts = self.facts.from_row(self.num_trained_facts)
        return facts[(facts[:, [0, 2]] >= self.num_trained).any(1)]

    def count_left_out(self, given: Tensor, new: Tensor) -> int:
        """Facts at the added entities of some given facts that are not among these.

        Args:
            given (Tensor): The facts, each once, ``[n, 3]``; larger ids are of new entities.
            new (Tensor): Those of them that the model does not hold.
        """
        ends = given[:, [0, 2]]
        named = ends[(ends >= self.num_trained) & (ends < self.num_entities)].unique()
        if not len(named):
            return 0
        held, repeated, added = (
            int(torch.isin(facts[:, [0, 2]], named).any(1).sum())
            for facts in (self.added_facts(), given, new)
        )
        return held - (repeated - added)

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
            self.num_trained_facts,
            len(self.relations),
            self.index.all_labels(),
            self._scores_by_vectors,
            int(trained.settings.get("seed", 0)),
            None if trained.features is None else trained.features.anchors(self.index.all_labels()),
        )

    def candidate_scores(self, entity: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Scores ``[B, N]`` of all entities at a side of triples whose other end is ``entity``."""
        if self.graph_scorer is not None:
            return self.graph_scorer.scores(entity, relation, side)
        return self._scores_by_vectors(entity, relation, side)

    def score_blocks(
        self, entity: Tensor, relation: Tensor, side: Side
    ) -> Iterator[tuple[int, Tensor]]:
        """The same scores, ``[B, n]`` of a part of the entities at a time, with its first id."""
        if self.graph_scorer is not None:
            yield 0, self.graph_scorer.scores(entity, relation, side)
        else:
            yield from self.scorer.blocks(self.rows.select(entity), relation, side)

    def queries_at_once(self) -> int:
        """Queries to score in one pass of :meth:`score_blocks`."""
        if self.graph_scorer is not None:
            return self.graph_scorer.block_size()
        return self.scorer.queries_at_once()

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
        parts = self.rows.slices(max(1, _PIECE // self.kge.hidden_channels))
        check_finite_parts(parts, self.index, "vectors")

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
                entities=self.index,
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
        temperature: float | Tensor = 1.0
        if calibration is not None:
            temperature = calibration.temperature
        elif self.trained.episodes is None:
            temperature = spread_temperature(self._scores_by_vectors, self._queries_to_score())
        return LinkProbabilities(
            FactAnswers(self.facts),
            self.num_entities,
            len(self.relations),
            LinkScores(self.candidate_scores),
            temperature=temperature,
            num_answers=1.0 if calibration is None else calibration.num_answers,
            exclude_facts=calibration is not None,
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

    def _queries_to_score(self) -> Tensor:
        """Pairs of entity and relation: those of some facts, evenly spaced, or of entities where
        there are none."""
        number = len(self.facts)
        if number:
            step = max(1, number // QUERIES)
            numbers = range(0, number, step)[:QUERIES]
            return torch.cat([self.facts.one(i) for i in numbers])[:, :2]
        entities = torch.arange(self.num_entities)
        return torch.stack([entities, entities % max(1, len(self.relations))], dim=1)

    def entity_scorer(self, beam: int | Literal["all"]) -> EntityScorer:
        """The scorer of queries whose vertices between are entities."""
        return EntityScorer(self.links, beam, entities=self.index, relations=self.relations)

    @cached_property
    def executor(self) -> GraphExecutor:
        """The answers to queries that follow from the facts alone."""
        return FactExecutor(self.facts, self.num_entities, len(self.relations))

    # Changes --------------------------------------------------------------------------------------

    def rewrite(self, added: Tensor, vectors: Tensor, origins: Sequence[str]) -> "ModelState":
        """A state with other vectors and origins of some added entities; trained ones are shared.

        Args:
            added (Tensor): Their ids, ``[n]``.
            vectors (Tensor): Their vectors, ``[n, s, d]``.
            origins (sequence of str): Where these come from.
        """
        index = self.index.with_origins(dict(zip(added.tolist(), origins, strict=True)))
        return replace(self, index=index, rows=self.rows.with_rows(added, vectors))

    def without(self, gone: Tensor) -> "ModelState":
        """A state without some entities and the facts that name them; nothing is copied.

        Args:
            gone (Tensor): Their ids, ``[n]``.
        """
        rows, num_lost = self.rows.without(gone), int((gone < self.num_trained).sum())
        trained, facts = self.trained, self.facts.without(gone)
        if num_lost:
            size = self.num_trained - num_lost
            bare = without_table(self.kge, size, lambda: real_rows(rows.trained()))
            trained = replace(trained, model=bare)
        if trained.features is not None:
            lost = trained.features.without(self.index.labels_of(gone))
            trained = replace(trained, features=lost)
        return replace(
            self,
            trained=trained,
            index=self.index.without(gone),
            rows=rows,
            facts=facts,
            num_trained_facts=facts.count_before(self.num_trained_facts),
        )

    def are_unanchored(self, ids: Tensor) -> Tensor:
        """Which ``ids`` are of added entities that no fact led to a trained one, bool ``[n]``."""
        out = ids >= self.num_trained
        origins = self.index.origins_of(ids[out])
        out[out.clone()] = torch.tensor([o == "unanchored" for o in origins], dtype=torch.bool)
        return out

    def stored(self) -> StoredModel:
        """Everything in one place, in memory, as a model folder holds it."""
        extended = None
        if self.num_entities > self.num_trained:
            extended = self.rows.from_row(self.num_trained).expand(-1, self.num_sections, -1)
        head = replace(self.trained, model=self.whole_kge, section_weight=self.section_weight)
        return StoredModel(
            **{part.name: getattr(head, part.name) for part in fields(head)},
            entities=self.index.vocabulary(),
            origins=self.index.origins(),
            facts=self.facts.from_row(0),
            extended=extended,
        )


def real_rows(rows: RowBlocks, start: int = 0) -> Iterator[Tensor]:
    """Rows from one on as real ones ``[n, s, m]``, as files hold them, in parts."""
    for x in rows.slices(max(1, _PIECE // rows.blocks[0].shape[-1]), start):
        yield torch.view_as_real(x.resolve_conj()).flatten(2) if x.is_complex() else x
