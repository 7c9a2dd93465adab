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
from sheafprop.inductive.proximity_scorer import relations_with_loops
from sheafprop.inductive.section_scorer import CandidateScorer, SectionScorer
from sheafprop.kge import KGEModel
from sheafprop.nn import Proximity
from sheafprop.pretrained.blocks import RowBlocks
from sheafprop.pretrained.graph_scorer import ByVectors
from sheafprop.query import EntityScorer, LinkProbabilities, QueryBatch, QueryScorer

# What is added to a proximity before its logarithm.
_FLOOR = 1e-6
# Bytes of the rows of links that queries of a type share.
_CACHE = 2**28


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
        self._near: Tensor | None = None
        self._scorer: Scorer | None = None
        self._scored: tuple[str, int] | None = None
        self._kept: KeptScores | None = None

    def scorer(self, settings: EntitySettings, keep: int = 0) -> "SplitScorer":
        """The scorer of queries, in the ids of the data set.

        Args:
            keep: Bytes of scores that scorers with the same vectors share.
        """
        scored = settings.scores, settings.iterations
        if scored != self._scored:
            self._scorer, self._scored, self._kept = self._score(settings), scored, None
        if keep and self._kept is None:
            self._kept = KeptScores(self._score_links, self.count, keep)
        elif not keep:
            self._kept = None
        links = LinkProbabilities(
            self.facts if settings.facts else self.facts[:0],
            self.count,
            len(self.task.data.relations),
            self,
            temperature=settings.temperature,
            log_proximity=self._log_proximity() if settings.proximity else None,
            proximity_weight=settings.proximity,
            cache_bytes=_CACHE,
        )
        return SplitScorer(EntityScorer(links, settings.beam), self.place)

    def score_links(self, entities: Tensor, relation: int, inverse: bool) -> Tensor:
        """Scores of all entities at the other end of a relation."""
        return (self._kept or self._score_links)(entities, relation, inverse)

    @torch.no_grad()
    def _score_links(self, entities: Tensor, relation: int, inverse: bool) -> Tensor:
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
            near = Proximity(self.facts[:, [0, 2]].T, self.count)
            # Most of them are needed, and many at once take the least time.
            self._near = torch.empty(self.count, self.count)
            for part in torch.arange(self.count).split(1024):
                self._near[part] = torch.log(near(part) + _FLOOR)
        return self._near.__getitem__


def scorer_of_sections(model: KGEModel, x: Tensor, weight: Iterable[float]) -> Scorer:
    """Scores by all sections; in one product where the energy is quadratic and each column has maps
    of its own."""
    weights = tuple(weight)
    sheaf = model.sheaf().map_tensors(torch.Tensor.detach)
    every = torch.arange(model.num_relations)
    linear = sheaf.translation_of(every) is None
    if not (model.squared and model.p == 2.0 and sheaf.independent_columns and linear):
        return SectionScorer(model, x, weights)
    scale = torch.tensor(weights).sqrt().to(x.real)
    rows = RowBlocks([(x * scale[:, None]).flatten(1).unsqueeze(1)])
    wide = sheaf.map_tensors(lambda table: table.repeat(1, len(weights)))
    scorer = CandidateScorer(model, wide, rows, (1.0,))
    return ByVectors(lambda entity, kind, side: scorer.scores(rows.select(entity), kind, side))


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


class KeptScores:
    """Scores of links in half precision, each computed once, as many as fit.

    Args:
        score: Gives the scores ``[n, N]`` of entities, a relation and whether it is inverse.
        count: The number of entities.
        limit: Bytes of the scores.
    """

    def __init__(self, score: Callable[[Tensor, int, bool], Tensor], count: int, limit: int):
        self._score, self._count, self._used = score, count, 0
        shape = (limit // (2 * count), count)
        self._rows = torch.from_numpy(np.empty(shape, dtype=np.float16))
        self._slots: dict[tuple[int, bool], Tensor] = {}

    def __call__(self, entities: Tensor, relation: int, inverse: bool) -> Tensor:
        """The scores of some entities."""
        slots = self._slots.setdefault((relation, inverse), torch.full((self._count,), -1))
        missing = entities[slots[entities] < 0]
        end = self._used + len(missing)
        if end > len(self._rows):
            return self._score(entities, relation, inverse)
        if len(missing):
            self._rows[self._used : end] = self._score(missing, relation, inverse)
            slots[missing] = torch.arange(self._used, end)
            self._used = end
        return self._rows[slots[entities]].float()
