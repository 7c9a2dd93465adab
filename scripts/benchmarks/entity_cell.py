"""Queries over entities beside the energy: a cell ranks the queries of a ratio by one method, once.

Vertices between are entities, facts are certain, and the scores of propagated vectors predict the
other links, with proximity beside them. The number of steps is chosen on validation queries of one
hop; the rest of :class:`EntitySettings` was chosen once, on validation queries of ratios 550 and
175. The cells of a ratio share its trained model; what is finished of a cell is kept in its folder.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.presets import QueryConfig, completion_config
from benchmarks.query_cell import TYPES, Record, choose_settings, train
from benchmarks.query_task import QueryTask, read_queries
from benchmarks.tables.query_tables import NEGATION
from sheafprop.files import write_json
from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.episode_scorer import EpisodeScorer, Scorer, WithVectors
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import LogProximity, relations_with_loops
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.kge import KGEModel, build_model
from sheafprop.query import (
    EntityScorer,
    LinkProbabilities,
    QueryBatch,
    QueryRanking,
    QueryScorer,
)
from sheafprop.ranking import PROTOCOLS
from sheafprop.ranking.metrics import query_values
from sheafprop.ranking.protocols import MAIN_METRICS
from sheafprop.training.episode_training import train_episodes

#: Queries of each type, at most, for rows that are not the final ones.
SAMPLE = 2000
#: Numbers of steps to choose from.
ITERATIONS = (1, 2, 4, 8)
# Random sections of episodes: half of the preset's cost a row, and no worse.
_SECTIONS = 8


@dataclass(frozen=True)
class EntitySettings:
    """How links between entities are scored, in plain values.

    Args:
        iterations: Steps of propagation.
        scores: The scores of vectors, of episodes, or of both at equal spread.
        temperature: The inverse temperature of these scores.
        proximity: The weight of the log of proximity.
        beam: Entities at a vertex between.
        facts: Whether the observed graph's facts are certain, and count.
    """

    iterations: int = 1
    scores: Literal["vectors", "episodes", "both"] = "vectors"
    temperature: float = 2.5
    proximity: float = 0.5
    beam: int = 64
    facts: bool = True


#: Methods by name: what differs from the chosen settings, or None for the energy, whose vertices
#: between are free.
METHODS: dict[str, dict[str, Any] | None] = {
    "entities": {},
    "energy": None,
    "energy without prior": None,
    "entities without proximity": {"proximity": 0.0},
    "entities without facts": {"facts": False},
    "entities with episodes": {"scores": "both", "temperature": 1.0},
}


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
        self._vectors: dict[int, Scorer] = {}
        self._episodes: Scorer | None = None
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
        if settings.scores != "vectors" and self._episodes is None:
            assert self.episodes is not None
            graph = self.task.completion.inference
            assert graph.entities is not None
            self._episodes = EpisodeScorer(
                self.episodes(), graph.triples, graph.entities.labels, self.propagation.seed
            )
        if settings.scores == "episodes":
            assert self._episodes is not None
            return self._episodes
        count = settings.iterations
        if count not in self._vectors:
            propagation = InductivePropagation(self.model, self.task.completion, self.propagation)
            self._vectors = {
                count: scorer_of_sections(
                    self.model, propagation.vectors(count), self.propagation.section_weight
                )
            }
        if settings.scores == "vectors":
            return self._vectors[count]
        assert isinstance(self._episodes, EpisodeScorer)
        observed = self.task.completion.inference.triples
        return WithVectors(self._episodes, self._vectors[count], 1.0, observed)

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


class SplitScorer:
    """A scorer of the entities of one split, for queries in the ids of the data set.

    Args:
        scorer (EntityScorer): The scorer.
        place (Tensor): The scorer's id of every entity of the data set.
    """

    def __init__(self, scorer: EntityScorer, place: Tensor) -> None:
        self.scorer, self.links, self.place = scorer, scorer.links, place

    def blocks(
        self, batch: QueryBatch, candidates: Tensor | None = None, *, batch_size: int | None = None
    ) -> Iterable[tuple[Tensor, Tensor]]:
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


class TrainedCell:
    """The trained model of a ratio, kept in a folder that its cells share.

    Args:
        data (QueryData): The data.
        config (QueryConfig): How to train and propagate.
        seed (int): The seed.
        folder (Path): Where the model, and what validation chose, is kept.
    """

    def __init__(self, place: Path, ratio: str, config: QueryConfig, seed: int, folder: Path):
        self.data, self.config, self.seed = read_queries(place, ratio), config, seed
        self.folder, self.kept = folder, KeptResults(folder)
        self.valid = QueryTask(self.data, "valid", config.inverse_relations)
        self.model, self.seconds = self._model()
        self.propagation = replace(config.propagation, seed=seed)

    def _model(self) -> tuple[KGEModel, float]:
        path = self.folder / "model.pt"
        if "seconds" not in self.kept:
            model, seconds = train(self.config, self.valid.completion, self.seed, self.folder)
            torch.save(
                {"name": model.name, "config": model.config(), "state": model.state_dict()}, path
            )
            self.kept.put("seconds", round(seconds, 1))
        stored = torch.load(path, weights_only=True)
        model = build_model(stored["name"], **stored["config"])
        model.load_state_dict(stored["state"])
        return model.eval(), self.kept["seconds"]

    def episodes(self) -> EpisodeModel:
        """Relations trained through the diffusion by the preset of FB15k-237, on the training graph
        alone."""
        path = self.folder / "episodes.pt"
        if not path.exists():
            config = completion_config("episodes", "fb237", "v1", self.model.name)
            settings = EpisodeSettings(**config["model"]["episodes"] | {"num_random": _SECTIONS})
            triples = self.valid.completion.train.triples
            folder = self.folder / "episodes"
            model, _ = train_episodes(self.model, triples, settings, seed=self.seed, folder=folder)
            torch.save(model.stored(), path)
        return EpisodeModel.from_stored(self.model, torch.load(path, weights_only=True))

    def links(self, task: QueryTask) -> ObservedLinks:
        """The links of a split."""
        return ObservedLinks(task, self.model, self.propagation, self.episodes)

    def energy_steps(self) -> int:
        """The number of steps with the best energies on validation."""
        return self.kept.get(
            "energy steps",
            lambda: choose_settings(self.valid, self.model, self.config, self.seed)[0].iterations,
        )

    def settings(self, most: int) -> EntitySettings:
        """The settings with the number of steps that ranks validation queries of one hop best."""
        return replace(
            EntitySettings(),
            iterations=self.kept.get(f"steps {most}", lambda: self._choose(most)),
        )

    def _choose(self, most: int) -> int:
        links = self.links(self.valid)
        tried = [replace(EntitySettings(), iterations=count) for count in ITERATIONS]
        found = compare_settings(links, tried, most, ("1p",))
        self.kept.put("tried steps", [value for _, value in found])
        return max(found, key=lambda pair: (pair[1], -pair[0].iterations))[0].iterations


def run_entities(
    place: Path,
    ratio: str,
    config: QueryConfig,
    seed: int,
    method: str,
    most_valid: int,
    most_test: int | None,
    models: Path,
    *,
    folder: Path,
) -> list[Record]:
    """Ranks test queries by one method, once; trains and chooses on validation where no other cell
    of the ratio has.

    Args:
        method: One of ``METHODS``.
        most_valid: Validation queries that choose, at most.
        most_test: Test queries of each type. (None: all)
        models: Where the trained model is kept for other cells.

    Returns:
        A record for each query type and averaging.
    """
    cell = TrainedCell(place, ratio, config, seed, models)
    # Of two libraries for products of single precision numbers, the one for this processor.
    torch.set_float32_matmul_precision("medium")
    test = QueryTask(cell.data, "test", config.inverse_relations)
    more: Record = {"train_seconds": cell.seconds, "limit": most_test}
    changed, kept = METHODS[method], KeptResults(folder)
    build: Callable[[], QueryScorer]
    if changed is None:
        settings = replace(cell.propagation, iterations=cell.energy_steps())
        prior = config.interior_prior and "without prior" not in method
        more |= {"iterations": settings.iterations}

        def build() -> QueryScorer:
            x = InductivePropagation(cell.model, test.completion, settings).vectors()
            return test.scorer(cell.model, x, settings, prior)
    else:
        chosen = replace(cell.settings(most_valid), **changed)
        more |= {"chosen": asdict(chosen), "most_valid": most_valid}

        def build() -> QueryScorer:
            return cell.links(test).scorer(chosen)

    scorer, records = None, []
    for kind in TYPES if changed is None else (*TYPES, *NEGATION):
        if kind not in kept:
            scorer = scorer or build()
            begin = time.perf_counter()
            found = list(figures(test.rank(scorer, kind, most_test)))
            seconds = round(time.perf_counter() - begin, 1)
            kept.put(kind, [record | {"seconds": seconds} for record in found])
        records += [{"type": kind} | record | more for record in kept[kind]]
    return records


def compare_settings(
    links: ObservedLinks, settings: Iterable[EntitySettings], most: int, types: Iterable[str]
) -> list[tuple[EntitySettings, float]]:
    """Macro Hits@10, its mean over query types, of each of some settings."""
    found = []
    for one in settings:
        scorer = links.scorer(one)
        rankings = [links.task.rank(scorer, kind, most) for kind in types]
        hits = [r.metrics("macro")["hits@10"] for r in rankings if len(r.counts)]
        found.append((one, sum(hits) / len(hits)))
    return found


def figures(ranking: QueryRanking) -> Iterator[Record]:
    """Macro and micro figures of one type, the first with the standard error of Hits@10."""
    for averaging in ("macro", "micro") if len(ranking.counts) else ():
        metrics = ranking.metrics(averaging)  # type: ignore[arg-type]
        record: Record = {"averaging": averaging, "queries": ranking.num_queries}
        record |= {name: round(metrics[name], 6) for name in MAIN_METRICS}
        if averaging == "macro" and ranking.num_queries > 1:
            record["standard_error"] = round(standard_error(ranking), 6)
        yield record


def standard_error(ranking: QueryRanking) -> float:
    """That of macro Hits@10 over queries."""
    hits = query_values(ranking.counts, PROTOCOLS["full"], "realistic", (10,))[:, 6]
    sizes = torch.bincount(ranking.query, minlength=ranking.num_queries)
    sums = torch.zeros(ranking.num_queries, dtype=torch.double).index_add_(0, ranking.query, hits)
    means = sums[sizes > 0] / sizes[sizes > 0]
    return float(means.std(correction=0)) / math.sqrt(len(means))


class KeptResults:
    """What is finished of a cell, by name, in a file of its folder."""

    def __init__(self, folder: Path):
        self.path = folder / "kept.json"
        self.found: dict[str, Any] = {}
        if self.path.exists():
            self.found = json.loads(self.path.read_text("utf-8"))

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def __getitem__(self, name: str) -> Any:
        return self.found[name]

    def get(self, name: str, compute: Callable[[], Any]) -> Any:
        """A result; it is computed and kept if it is not there."""
        if name not in self.found:
            self.put(name, compute())
        return self.found[name]

    def put(self, name: str, value: Any) -> None:
        """Keeps a result."""
        self.found[name] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.found)
