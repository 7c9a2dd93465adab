"""Queries over entities beside the energy: one cell trains, chooses on validation, ranks once.

Vertices between are entities, facts are certain, and the scores of propagated vectors predict the
other links, with proximity beside them. Temperature, weight of proximity, beam and iterations are
chosen one after the other on a seeded choice of validation queries. What is finished of a cell is
kept in its folder.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.presets import QueryConfig
from benchmarks.query_cell import TYPES, Record, choose_settings, train
from benchmarks.query_task import QueryTask, read_queries
from benchmarks.tables.query_tables import NEGATION
from sheafprop.files import write_json
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.inductive.proximity_scorer import LogProximity
from sheafprop.kge import KGEModel, build_model
from sheafprop.kge.base import Side
from sheafprop.pretrained.blocks import RowBlocks
from sheafprop.pretrained.candidate_scorer import CandidateScorer
from sheafprop.query import EntityScorer, LinkProbabilities, QueryRanking
from sheafprop.ranking import PROTOCOLS
from sheafprop.ranking.metrics import query_values
from sheafprop.ranking.protocols import MAIN_METRICS

#: Queries of each type, at most, for rows that are not the final ones.
SAMPLE = 2000
#: What is tried, one field after the other from the defaults of :class:`EntitySettings`.
GRID: dict[str, tuple[Any, ...]] = {
    "iterations": (1, 2, 4, 8),
    "temperature": (1.25, 2.5, 5.0, 10.0),
    "proximity": (0.0, 0.25, 0.5, 1.0),
    "beam": (16, 64, 128),
}


@dataclass(frozen=True)
class EntitySettings:
    """What is chosen on validation, in plain values.

    Args:
        iterations: Steps of propagation.
        temperature: The inverse temperature of the model's scores.
        proximity: The weight of the log of proximity.
        beam: Entities at a vertex between.
        facts: Whether the observed graph's facts are certain, and count.
    """

    iterations: int = 1
    temperature: float = 2.5
    proximity: float = 0.5
    beam: int = 64
    facts: bool = True


class ObservedLinks:
    """Links between the entities of one split: vectors, facts and proximity of its observed graph.

    Args:
        task (QueryTask): The split.
        model (KGEModel): The trained model.
        propagation (PropagationSettings): How vectors are propagated.
    """

    def __init__(self, task: QueryTask, model: KGEModel, propagation: PropagationSettings):
        self.task, self.model, self.propagation = task, model, propagation
        self.facts = task.data.observed(task.split)
        self._vectors: dict[int, Tensor] = {}
        self._scorer: CandidateScorer | None = None
        self._near: Callable[[Tensor], Tensor] | None = None

    def scorer(self, settings: EntitySettings) -> EntityScorer:
        """The scorer of queries, in the ids of the data set."""
        data = self.task.data
        x = self._propagated(settings.iterations)
        self._scorer = CandidateScorer(
            self.model, self.model.sheaf(), RowBlocks([x]), self.propagation.section_weight
        )
        links = LinkProbabilities(
            self.facts if settings.facts else self.facts[:0],
            len(data.entities),
            len(data.relations),
            self,
            temperature=settings.temperature,
            log_proximity=self._log_proximity(),
            proximity_weight=settings.proximity,
            domain=data.candidates(self.task.split),
            cache_bytes=2**30,
        )
        return EntityScorer(links, settings.beam)

    @torch.no_grad()
    def score_links(self, entities: Tensor, relation: int, inverse: bool) -> Tensor:
        """Scores of all entities at the other end of a relation, by propagated vectors."""
        assert self._scorer is not None
        own = int(self.task.relations[relation + inverse * len(self.task.data.relations)])
        backwards, own = divmod(own, self.model.num_relations)
        side: Side = "head" if backwards else "tail"
        kinds = torch.full_like(entities, own)
        return self._scorer.scores(self._scorer.rows.select(entities), kinds, side)

    @torch.no_grad()
    def _propagated(self, iterations: int) -> Tensor:
        """Vectors ``[N, s, d]`` in the ids of the data set, zero outside the split."""
        if iterations not in self._vectors:
            task = self.task
            x = InductivePropagation(self.model, task.completion, self.propagation).vectors(
                iterations
            )
            entities = task.completion.inference.entities
            assert entities is not None
            place = entities.lookup(task.data.entities.labels)
            vectors = x.new_zeros(len(place), *x.shape[1:])
            vectors[place >= 0] = x[place[place >= 0]]
            self._vectors = {iterations: vectors}
        return self._vectors[iterations]

    def _log_proximity(self) -> Callable[[Tensor], Tensor]:
        if self._near is None:
            self._near = KeptRows(
                LogProximity(self.facts, len(self.task.data.entities)),
                len(self.task.data.entities),
            )
        return self._near


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


def run_entities(
    place: Path,
    ratio: str,
    config: QueryConfig,
    seed: int,
    most_valid: int,
    most_test: int | None,
    *,
    folder: Path,
) -> list[Record]:
    """Trains, chooses on validation queries, and ranks test queries once.

    Args:
        most_valid: Validation queries of each type that choose, at most.
        most_test: Test queries of each type for the rows of energy and entities. (None: all)

    Returns:
        A record for each method, query type and averaging.
    """
    data = read_queries(place, ratio)
    kept = KeptResults(folder)
    valid = QueryTask(data, "valid", config.inverse_relations)
    model, seconds = _trained(config, valid, seed, folder, kept)
    propagation = replace(config.propagation, seed=seed)
    steps = kept.get("energy", lambda: choose_settings(valid, model, config, seed)[0].iterations)
    chosen = EntitySettings(
        **kept.get(
            "chosen",
            lambda: asdict(
                choose(ObservedLinks(valid, model, propagation), steps, most_valid, kept)
            ),
        )
    )
    test = QueryTask(data, "test", config.inverse_relations)
    links = ObservedLinks(test, model, propagation)
    energy = replace(propagation, iterations=steps)

    def energy_scorer() -> Any:
        x = InductivePropagation(model, test.completion, energy).vectors()
        return test.scorer(model, x, energy, config.interior_prior)

    sample = SAMPLE if most_test is None else min(SAMPLE, most_test)
    rows: dict[str, tuple[Callable[[], Any], int | None]] = {
        "entities": (lambda: links.scorer(chosen), most_test),
        "energy": (energy_scorer, most_test),
        "entities without proximity": (lambda: links.scorer(replace(chosen, proximity=0)), sample),
        "entities without facts": (lambda: links.scorer(replace(chosen, facts=False)), sample),
    }
    records: list[Record] = []
    more = {"chosen": asdict(chosen), "train_seconds": seconds, "most_valid": most_valid}
    for method, (build, limit) in rows.items():
        scorer = None
        for kind in TYPES if method == "energy" else (*TYPES, *NEGATION):
            key = f"{method} {kind}"
            if key not in kept:
                scorer = scorer or build()
                begin = time.perf_counter()
                found = figures(test.rank(scorer, kind, limit))
                kept.put(key, [r | {"seconds": time.perf_counter() - begin} for r in found])
            same = {"method": method, "type": kind, "limit": limit}
            records += [same | record | more for record in kept[key]]
    return records


def choose(links: ObservedLinks, iterations: int, most: int, kept: "KeptResults") -> EntitySettings:
    """The settings of the best macro Hits@10, its mean over all types, a field at a time."""
    best, value = EntitySettings(iterations=iterations), -math.inf
    for name, choices in GRID.items():
        for settings in dict.fromkeys([best, *(replace(best, **{name: c}) for c in choices)]):
            key = f"valid {json.dumps(asdict(settings))}"
            if key not in kept:
                scorer = links.scorer(settings)
                found = [links.task.rank(scorer, kind, most) for kind in (*TYPES, *NEGATION)]
                hits = [r.metrics("macro")["hits@10"] for r in found if len(r.counts)]
                kept.put(key, sum(hits) / len(hits))
            if kept[key] > value:
                best, value = settings, kept[key]
    return best


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


def _trained(
    config: QueryConfig, valid: QueryTask, seed: int, folder: Path, kept: KeptResults
) -> tuple[KGEModel, float]:
    """The trained model, kept with its seconds."""
    path = folder / "model.pt"
    if "seconds" not in kept:
        model, seconds = train(config, valid.completion, seed, folder)
        torch.save(
            {"name": model.name, "config": model.config(), "state": model.state_dict()}, path
        )
        kept.put("seconds", round(seconds, 1))
    stored = torch.load(path, weights_only=True)
    model = build_model(stored["name"], **stored["config"])
    model.load_state_dict(stored["state"])
    return model.eval(), kept["seconds"]
