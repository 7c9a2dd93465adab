"""One cell of the query benchmark: train a model, choose the iterations, rank once."""

import copy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm.auto import tqdm

from benchmarks.presets import QueryConfig
from benchmarks.query_task import QueryTask, read_queries
from benchmarks.training import BatchBar, train_plainly
from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import KGEModel
from sheafprop.query import CONJUNCTIVE, QueryRanking, QueryScorer
from sheafprop.query.query_ranking import Averaging
from sheafprop.ranking.protocols import MAIN_METRICS
from sheafprop.training.sheaf_completion import SheafCompletion

TYPES = (*CONJUNCTIVE, "2u", "up")
#: The shares of the batches after which a learning curve has a point.
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)

Record = dict[str, Any]


_AVERAGINGS: tuple[Averaging, ...] = ("macro", "micro")


def run_cell(
    place: Path, ratio: str, config: QueryConfig, seed: int, *, folder: Path
) -> list[Record]:
    """Trains on the training graph, chooses on validation and ranks every test query once.

    Returns:
        A record for each query type and averaging.
    """
    data = read_queries(place, ratio)
    valid = QueryTask(data, "valid", config.inverse_relations)
    model, seconds = train(config, valid.completion, seed, folder)
    settings, value = choose_settings(valid, model, config, seed)
    test = QueryTask(data, "test", config.inverse_relations)
    vectors = InductivePropagation(model, test.completion, settings).vectors()
    records = _rank(test, test.scorer(model, vectors, settings, config.interior_prior))
    more = {
        "iterations": settings.iterations,
        "validation_hits@10": round(value, 6),
        "train_seconds": round(seconds, 1),
    }
    return [record | more for record in records]


def heuristic_records(place: Path, ratio: str, *, folder: Path) -> list[Record]:
    """Ranks every test query by the edge-type heuristic, under both conventions for ties."""
    test = QueryTask(read_queries(place, ratio), "test", inverse_relations=False)
    return _rank(
        test, test.heuristic(), (*MAIN_METRICS, *(f"expected_{name}" for name in MAIN_METRICS))
    )


def run_curve(
    place: Path, ratio: str, config: QueryConfig, seed: int, *, folder: Path
) -> list[Record]:
    """Trains for ``config.max_steps`` batches and ranks validation queries on the way.

    Test queries are not looked at. Each point takes the number of iterations that is best there,
    by the mean of micro Hits@10 over the seven conjunctive types.

    Returns:
        A record for each point: batches, seconds of training, and Hits@10 of both averagings.
    """
    valid = QueryTask(read_queries(place, ratio), "valid", config.inverse_relations)
    curve = LearningCurve(valid, config, seed)
    train(config, valid.completion, seed, folder, callbacks=[curve])
    return curve.points


def train(
    config: QueryConfig,
    data: InductiveData,
    seed: int,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[KGEModel, float]:
    """A model trained on the training graph alone, with its last weights, and the seconds."""
    return train_plainly(
        SheafCompletion(**config.model, seed=seed),
        data,
        config.batch_size,
        folder=folder,
        clock=time.perf_counter,
        accelerator="auto",
        max_epochs=config.max_epochs,
        max_steps=config.max_steps,
        callbacks=[BatchBar(), *callbacks],
    )


def choose_settings(
    valid: QueryTask, model: KGEModel, config: QueryConfig, seed: int
) -> tuple[PropagationSettings, float]:
    """The number of iterations with the best Hits@10 (micro, mean over types) on validation.

    Returns:
        The settings with that number, and the value it reaches.
    """
    found = []
    for count, rankings in validation_rankings(valid, model, config, seed, config.selection_types):
        found.append((mean_hits(rankings, "micro"), -count))
    value, count = max(found)
    return replace(config.propagation, seed=seed, iterations=-count), value


def validation_rankings(
    valid: QueryTask, model: KGEModel, config: QueryConfig, seed: int, types: Sequence[str]
) -> Iterator[tuple[int, list[QueryRanking]]]:
    """Validation queries of these types ranked after each of the numbers of iterations."""
    settings = replace(config.propagation, seed=seed)
    propagation = InductivePropagation(model, valid.completion, settings)
    for count, x in propagation.trajectory(config.iterations):
        scorer = valid.scorer(model, x, settings, config.interior_prior)
        yield count, [valid.rank(scorer, kind, config.selection_queries) for kind in types]


def mean_hits(rankings: Sequence[QueryRanking], averaging: Averaging) -> float:
    """Hits@10, its mean over rankings of several types."""
    values = [ranking.metrics(averaging)["hits@10"] for ranking in rankings]
    return sum(values) / len(values)


def _rank(
    test: QueryTask, scorer: QueryScorer, names: Sequence[str] = MAIN_METRICS
) -> list[Record]:
    records = []
    for kind in TYPES:
        begin = time.perf_counter()
        ranking = test.rank(scorer, kind)
        seconds = round(time.perf_counter() - begin, 2)
        for averaging in _AVERAGINGS:
            metrics = ranking.metrics(averaging)
            figures = {name: round(metrics[name], 6) for name in names}
            count = {"queries": ranking.num_queries, "seconds": seconds}
            count["threads"] = torch.get_num_threads()
            records.append({"type": kind, "averaging": averaging, **figures, **count})
    return records


class LearningCurve(Callback):
    """Ranks validation queries after some batches of training.

    Args:
        valid (QueryTask): The queries.
        config (QueryConfig): What is trained and propagated.
        seed (int): Seed of the random starts.
    """

    def __init__(self, valid: QueryTask, config: QueryConfig, seed: int) -> None:
        self.valid, self.config, self.seed = valid, config, seed
        self.steps = {round(share * config.max_steps) for share in SHARES}
        self.points: list[Record] = []
        #: When training began, later by what ranking took.
        self.begin = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        return {"points": self.points, "seconds": time.perf_counter() - self.begin}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.points = state_dict["points"]
        self.begin = time.perf_counter() - state_dict["seconds"]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        done = {point["steps"] for point in self.points}
        if trainer.global_step not in self.steps - done:
            return
        begin = time.perf_counter()
        # A copy, as the module constrains its own model only after this.
        model = copy.deepcopy(pl_module.model)
        assert isinstance(model, KGEModel)
        model.eval().constrain_entities_()
        with torch.no_grad():
            best = self.best(model)
        point = {"steps": trainer.global_step, "seconds": round(begin - self.begin, 1)} | best
        point["threads"] = torch.get_num_threads()
        tqdm.write(f"{point}", file=sys.stderr)
        self.points.append(point)
        self.begin += time.perf_counter() - begin

    def best(self, model: KGEModel) -> Record:
        """Hits@10 after the best number of iterations, the least one in a tie."""
        found = []
        for count, rankings in validation_rankings(
            self.valid, model, self.config, self.seed, CONJUNCTIVE
        ):
            hits = {name: round(mean_hits(rankings, name), 6) for name in ("micro", "macro")}
            found.append({"iterations": count} | hits)
        return max(found, key=lambda point: (point["micro"], -point["iterations"]))
