"""Queries over entities beside the energy: a cell ranks the queries of a ratio by one method, once.

Vertices between are entities, facts are certain, and the scores of propagated vectors predict the
other links, with proximity beside them. Validation queries of the ratio choose the number of steps
(Hits@10 of one hop), then the weight of proximity and the temperature, one after the other, by the
mean over all types of MRR + Hits@10. The cells of a ratio share its trained model; what is finished
of a cell is kept in its folder.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.entity_links import EntitySettings, ObservedLinks
from benchmarks.presets import QueryConfig, completion_config
from benchmarks.query_cell import TYPES, Record, choose_settings, train
from benchmarks.query_task import QueryTask, read_queries
from benchmarks.tables.query_tables import NEGATION
from sheafprop.files import write_json
from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.kge import KGEModel, build_model
from sheafprop.query import QueryRanking, QueryScorer, QueryShape, structure
from sheafprop.ranking import PROTOCOLS, RankCounts
from sheafprop.ranking.metrics import query_values
from sheafprop.ranking.protocols import MAIN_METRICS
from sheafprop.training.episode_training import train_episodes

#: Queries of each type, at most, for rows that are not the final ones.
SAMPLE = 2000
#: Numbers of steps to choose from.
ITERATIONS = (1, 2, 4, 8)
#: What is chosen next: from one setting to the best of its neighbours, until none is better.
GRID = {
    "proximity": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.85, 1.1, 1.5),
    "temperature": (0.9, 1.3, 1.8, 2.5, 3.5, 5.0),
}
#: Validation queries of each type that choose them: types without entities between, and with them,
#: which need rows for each of these entities.
SELECTION = (240, 60)
# Bytes of scores that settings share, and queries after which the ranks are kept.
_SHARED_SCORES, _PART = 2**30, 4000
# Random sections of episodes, a quarter of the preset's: a row costs in proportion.
_SECTIONS = 8
#: Methods by name: what differs from the chosen settings, or None for the energy, whose vertices
#: between are free.
METHODS: dict[str, dict[str, Any] | None] = {
    "entities": {},
    "entities, one setting for all ratios": {"proximity": 0.5, "temperature": 2.5},
    "energy": None,
    "energy without prior": None,
    "entities without proximity": {"proximity": 0.0},
    "entities without facts": {"facts": False},
    "entities with episodes": {"scores": "episodes", "temperature": 1.0, "proximity": 0.4},
}


class TrainedCell:
    """The trained model of a ratio, kept in a folder that its cells share.

    Args:
        place (Path): Where the splits are.
        ratio: The ratio.
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
            config = completion_config("plain-walk", "fb237", "v1", self.model.name)
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
        """The settings that validation queries of the ratio choose.

        Args:
            most: Validation queries that choose the number of steps, at most.
        """
        steps = self.kept.get(f"steps {most}", lambda: self._choose_steps(most))
        best = replace(EntitySettings(), iterations=steps)
        links, name = self.links(self.valid), "tried settings"
        tried: dict[str, float] = dict(self.kept.found.get(name, {}))

        def judge(one: EntitySettings) -> float:
            key = f"proximity {one.proximity}, temperature {one.temperature}"
            if key not in tried:
                tried[key] = criterion(links, one)
                self.kept.put(name, tried)
            return tried[key]

        return climb(best, judge)

    def _choose_steps(self, most: int) -> int:
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
        more["tried_settings"] = cell.kept["tried settings"]

        def build() -> QueryScorer:
            return cell.links(test).scorer(chosen)

    scorer, records = None, []
    for kind in TYPES if changed is None else (*TYPES, *NEGATION):
        if kind not in kept:
            scorer = scorer or build()
            begin = time.perf_counter()
            found = list(figures(rank_in_parts(test, scorer, kind, most_test, folder)))
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


def climb(best: EntitySettings, judge: Callable[[EntitySettings], float]) -> EntitySettings:
    """The settings where no neighbour in the grid is better, from given ones on.

    One option is changed at a time, as long as that helps.
    """
    options, idle = list(GRID), 0
    while idle < len(options):
        option = options[0]
        options.append(options.pop(0))
        values, start, moved = GRID[option], best, True
        while moved:
            place = values.index(getattr(best, option))
            changes: list[dict[str, Any]] = [
                {option: value} for value in values[max(place - 1, 0) : place + 2]
            ]
            near = [replace(best, **change) for change in changes]
            better = max(near, key=lambda one: (judge(one), one == best))
            moved, best = better != best, better
        idle = idle + 1 if best == start else 1
    return best


def criterion(links: ObservedLinks, settings: EntitySettings) -> float:
    """MRR + Hits@10 on queries of a split, macro, the mean over all types."""
    scorer, values = links.scorer(settings, keep=_SHARED_SCORES), []
    for kind in (*TYPES, *NEGATION):
        between = waits_between(structure(kind))
        ranking = links.task.rank(scorer, kind, SELECTION[between])
        if len(ranking.counts):
            metrics = ranking.metrics("macro")
            values.append(metrics["mrr"] + metrics["hits@10"])
    return sum(values) / len(values)


def waits_between(shape: QueryShape) -> bool:
    """Whether a query has a vertex between its anchors and its answer."""
    return any(
        node.operator == "via" and node.branches[0].operator != "anchor" for node in shape.walk()
    )


def rank_in_parts(
    task: QueryTask, scorer: QueryScorer, kind: str, most: int | None, folder: Path
) -> QueryRanking:
    """Ranks the hard answers of the queries of a type; what is ranked is kept in a folder.

    Queries of a part share their last relation as far as possible.
    """
    batch = task.queries(kind, most)[0]
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, rows in enumerate(batch.order_by_relation().split(_PART)):
        path = folder / f"{kind} {number}.pt"
        if not path.exists():
            found = task.rank(scorer, kind, most, rows=rows)
            counts = [found.counts.better, found.counts.ties, found.counts.candidates]
            torch.save([*counts, rows[found.query]], path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)
        parts.append(torch.load(path, weights_only=True))
    *counts, query = (torch.cat(column) for column in zip(*parts, strict=True))
    order = query.argsort(stable=True)
    own = RankCounts(*(count[order] for count in counts))
    return QueryRanking(own, query[order], len(batch), task.data.candidates(task.split).numel())


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
