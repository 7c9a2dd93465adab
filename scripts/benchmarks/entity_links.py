"""How probable links between the entities of a split are, by vectors, proximity and facts."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.query_task import QueryTask
from sheafprop.inductive.episode_model import EpisodeModel
from sheafprop.inductive.episode_scorer import EpisodeScorer, Scorer
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import LogProximity, relations_with_loops
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.kge import KGEModel
from sheafprop.query import EntityScorer, LinkProbabilities, QueryBatch, QueryScorer


@dataclass(frozen=True)
class EntitySettings:
    """How links between entities are scored, in plain values.

    Args:
        iterations: Steps of propagation.
        scores: Those of propagated vectors, or of relations trained through the diffusion.
        temperature: The inverse temperature of these scores.
        proximity: The weight of the log of proximity.
        beam: Entities at a vertex between.
        facts: Whether the observed graph's facts are certain, and count.
    """

    iterations: int = 1
    scores: Literal["vectors", "episodes"] = "vectors"
    temperature: float = 2.5
    proximity: float = 0.5
    beam: int = 64
    facts: bool = True


class ObservedLinks:
    """Links between the entities of one split: vectors, facts and proximity of its observed graph.

    Entities are numbered as in the inference graph, relations as in the data set. An entity has no
    predicted link to itself where the relation has no loop in the training graph.

    Args:
        task (QueryTask): The split.
        model (KGEModel): The trained model.
        propagation (PropagationSettings): How vectors are propagated.
        episodes: Gives the model of episodes where it is asked for.
    """

    def __init__(
        self,
        task: QueryTask,
        model: KGEModel,
        propagation: PropagationSettings,
        episodes: Callable[[], EpisodeModel] | None = None,
    ):
        data, graph = task.data, task.completion.inference
        assert graph.entities is not None
        self.task, self.model, self.propagation = task, model, propagation
        self.episodes = episodes
        #: The number of every entity of the data set; -1 for those of the other split.
        self.place = graph.entities.lookup(data.entities.labels)
        self.count = len(graph.entities)
        head, relation, tail = data.observed(task.split).T
        self.facts = torch.stack([self.place[head], relation, self.place[tail]], dim=1)
        self._loops = relations_with_loops(data.graphs["train_graph"], len(data.relations))
        self._near: Callable[[Tensor], Tensor] | None = None
        self._scorer: Scorer | None = None

    def scorer(self, settings: EntitySettings) -> "SplitScorer":
        """The scorer of queries, in the ids of the data set."""
        self._scorer = self._score(settings)
        links = LinkProbabilities(
            self.facts if settings.facts else self.facts[:0],
            self.count,
            len(self.task.data.relations),
            self,
            temperature=settings.temperature,
            log_proximity=self._log_proximity() if settings.proximity else None,
            proximity_weight=settings.proximity,
            cache_bytes=2**30,
        )
        return SplitScorer(EntityScorer(links, settings.beam), self.place)

    @torch.no_grad()
    def score_links(self, entities: Tensor, relation: int, inverse: bool) -> Tensor:
        """Scores of all entities at the other end of a relation."""
        assert self._scorer is not None
        own = int(self.task.relations[relation + inverse * len(self.task.data.relations)])
        backwards, own = divmod(own, self.model.num_relations)
        kinds = torch.full_like(entities, own)
        if backwards:
            scores = self._scorer.score_heads(kinds, entities)
        else:
            scores = self._scorer.score_tails(entities, kinds)
        if not self._loops[relation]:
            scores[torch.arange(len(entities)), entities] = -math.inf
        return scores

    @torch.no_grad()
    def _score(self, settings: EntitySettings) -> Scorer:
        if settings.scores == "episodes":
            assert self.episodes is not None
            graph = self.task.completion.inference
            assert graph.entities is not None
            labels = graph.entities.labels
            return EpisodeScorer(self.episodes(), graph.triples, labels, self.propagation.seed)
        propagation = InductivePropagation(self.model, self.task.completion, self.propagation)
        x = propagation.vectors(settings.iterations)
        return scorer_of_sections(self.model, x, self.propagation.section_weight)

    def _log_proximity(self) -> Callable[[Tensor], Tensor]:
        if self._near is None:
            self._near = KeptRows(LogProximity(self.facts, self.count), self.count)
        return self._near


def scorer_of_sections(model: KGEModel, x: Tensor, weight: Iterable[float]) -> SectionScorer:
    """Scores by all sections; where energies are scores and maps are linear, in one product."""
    weights = tuple(weight)
    every = torch.arange(model.num_relations)
    if model.squared and model.sheaf().translation_of(every) is None:
        # The energy is quadratic in the vectors.
        scale = torch.tensor(weights).sqrt().to(x.real)
        return SectionScorer(model, x * scale[:, None], (1.0,) * len(weights))
    return SectionScorer(model, x, weights)


class SplitScorer(QueryScorer):
    """A scorer of the entities of one split, for queries in the ids of the data set.

    Args:
        scorer (EntityScorer): The scorer.
        place (Tensor): The scorer's id of every entity of the data set.
    """

    def __init__(self, scorer: EntityScorer, place: Tensor) -> None:
        super().__init__(len(place), scorer.num_relations)
        self.scorer, self.links, self.place = scorer, scorer.links, place

    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields positions of queries, and their scores ``[rows, C]``."""
        slots, columns = batch.slots.clone(), list(batch.shape.entity_slots)
        slots[:, columns] = self.place[slots[:, columns]]
        own = None if candidates is None else self.place[candidates]
        if own is not None and torch.equal(own, torch.arange(self.links.num_entities)):
            own = None
        batch = QueryBatch(batch.shape, slots, batch.edge_weight)
        return self.scorer.blocks(batch, own, batch_size=batch_size)


class KeptRows:
    """Rows of all entities, each computed once and kept in half precision."""

    def __init__(self, rows: Callable[[Tensor], Tensor], count: int):
        self._compute = rows
        self._rows = torch.from_numpy(np.empty((count, count), dtype=np.float16))
        self._known = torch.zeros(count, dtype=torch.bool)

    def __call__(self, entities: Tensor) -> Tensor:
        """The rows ``[n, N]`` of some entities."""
        for missing in entities[~self._known[entities]].split(256):
            self._rows[missing] = self._compute(missing).half()
            self._known[missing] = True
        return self._rows[entities].float()
