"""One cell of the query benchmark: train a model, choose the iterations, rank once."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback

from benchmarks.plain_training import BatchBar, train_plainly
from benchmarks.query_presets import QueryConfig
from benchmarks.query_task import QueryTask
from sheafprop.data.datasets.query_data import QueryData
from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import KGEModel
from sheafprop.query import CONJUNCTIVE, QueryRanking, QueryScorer
from sheafprop.query.evaluation import Averaging
from sheafprop.training.sheaf_completion import SheafCompletion

TYPES = (*CONJUNCTIVE, "2u", "up")

Record = dict[str, Any]

_METRICS = ("hits@1", "hits@3", "hits@10", "mrr")


def run_cell(data: QueryData, config: QueryConfig, seed: int) -> list[Record]:
    """Trains on the training graph, chooses on validation and ranks every test query once.

    Returns:
        A record for each query type and averaging.
    """
    valid = QueryTask(data, "valid", config.inverse_relations)
    begin = time.perf_counter()
    model = trained(config, valid.completion, seed)
    seconds = time.perf_counter() - begin
    settings, value = chosen_settings(valid, model, config, seed)
    more = {
        "iterations": settings.iterations,
        "validation_hits@10": round(value, 6),
        "train_seconds": round(seconds, 1),
    }
    return [record | more for record in test_records(data, model, config, settings)]


def trained(
    config: QueryConfig, data: InductiveData, seed: int, callbacks: Sequence[Callback] = ()
) -> KGEModel:
    """A model trained on the training graph alone, with its last weights."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = SheafCompletion(**config.model, seed=seed)
    return train_plainly(
        module,
        data,
        config.batch_size,
        accelerator="auto",
        max_epochs=config.max_epochs,
        max_steps=config.max_steps,
        callbacks=[BatchBar(), *callbacks],
    )


def chosen_settings(
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


def test_records(
    data: QueryData,
    model: KGEModel,
    config: QueryConfig,
    settings: PropagationSettings,
) -> list[Record]:
    """Ranks every test query once."""
    test = QueryTask(data, "test", config.inverse_relations)
    vectors = InductivePropagation(model, test.completion, settings).vectors()
    return _ranked(test, test.scorer(model, vectors, settings, config.interior_prior))


def heuristic_records(data: QueryData) -> list[Record]:
    """Ranks every test query by the edge-type heuristic, under both conventions for ties."""
    test = QueryTask(data, "test", inverse_relations=False)
    return _ranked(test, test.heuristic(), (*_METRICS, *(f"expected_{name}" for name in _METRICS)))


def _ranked(test: QueryTask, scorer: QueryScorer, names: Sequence[str] = _METRICS) -> list[Record]:
    records = []
    for kind in TYPES:
        begin = time.perf_counter()
        ranking = test.rank(scorer, kind)
        seconds = round(time.perf_counter() - begin, 2)
        averagings: tuple[Averaging, ...] = ("macro", "micro")
        for averaging in averagings:
            metrics = ranking.metrics(averaging)
            figures = {name: round(metrics[name], 6) for name in names}
            count = {"queries": ranking.num_queries, "seconds": seconds}
            count["threads"] = torch.get_num_threads()
            records.append({"type": kind, "averaging": averaging, **figures, **count})
    return records
