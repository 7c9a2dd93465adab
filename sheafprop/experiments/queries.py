"""Logical queries on the nine FB15k-237 splits: train, propagate, rank, one cell at a time.

A cell is a ratio, a model, a preset and a seed. Finished cells are in the file of results, keyed by
a hash of their configuration, and are not run again.
"""

import argparse
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from tqdm.auto import tqdm

from sheafprop.data.datasets.compact_queries import read_compact_queries
from sheafprop.data.datasets.grail import ENVIRONMENT
from sheafprop.data.datasets.query_data import QueryData, QuerySplit
from sheafprop.experiments.commit import current_commit
from sheafprop.io import write_json
from sheafprop.kge import KGEModel
from sheafprop.query import (
    CONJUNCTIVE,
    AnswerSets,
    GraphExecutor,
    QueryAnswering,
    QueryBatch,
    QueryEdgeHeuristic,
    QueryRanking,
    QueryScorer,
    easy_and_hard,
    evaluate_queries,
)
from sheafprop.service import InductivePropagation, PropagationSettings
from sheafprop.training.inductive_data_module import InductiveDataModule
from sheafprop.training.sheaf_completion import SheafCompletion

RATIOS = ("106", "113", "122", "134", "150", "175", "217", "300", "550")
MODELS = ("transe", "rotate", "transr", "se")
TYPES = (*CONJUNCTIVE, "2u", "up")
HEURISTIC = "edge-type heuristic"
_ITERATIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

_TRAINING: dict[str, Any] = {
    "hidden_channels": 64,
    "kge_args": {"squared": True, "entity_constraint": "unit"},
    "loss_args": {"label_smoothing": 0.1, "scale": 3.0},
    "lr": 0.03,
    "lr_schedule": "cosine",
}
#: ``paper`` follows the paper's scheme: inverse relations are relations of their own, one random
#: start, no rescaling, iterations chosen on validation 1p. ``best`` walks relations backwards
#: without parameters, propagates several starts and chooses on all types. Training is the same.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "inverse_relations": True,
        "selection_types": ("1p",),
        "settings": {"start": "random", "num_random": 1, "normalize_output": False},
        "training": _TRAINING,
        "batch_size": 512,
        "steps": 3000,
    },
    "best": {
        "inverse_relations": False,
        "selection_types": CONJUNCTIVE,
        "settings": {"start": "mixed", "num_random": 8, "normalize_output": True},
        "training": _TRAINING,
        "batch_size": 512,
        "steps": 3000,
    },
}


class QueryTask:
    """The queries of one split over the vectors that a model and a propagation give.

    Args:
        data (QueryData): Graphs and queries.
        split: ``"valid"`` or ``"test"``.
        inverse_relations (bool): Whether the model has inverse relations of their own.
    """

    def __init__(self, data: QueryData, split: QuerySplit, inverse_relations: bool) -> None:
        self.data, self.split = data, split
        with warnings.catch_warnings():
            # Triples to predict that are known backwards are part of the benchmark.
            warnings.simplefilter("ignore", UserWarning)
            self.completion = data.completion(split, inverse_relations=inverse_relations)
        known = self.completion.train.relations
        assert known is not None
        forward = known.lookup(data.relations.labels)
        backward = forward + len(known)
        if inverse_relations:
            backward = known.lookup(map(data.inverse_label, data.relations.labels))
        #: The model's id of every relation and inverse relation.
        self.relations = torch.cat([forward, backward])
        self._queries: dict[Any, tuple[QueryBatch, AnswerSets, AnswerSets]] = {}
        self.executors = [
            GraphExecutor(triples, len(data.entities), len(data.relations), data.candidates(split))
            for triples in (data.observed(split), data.full(split))
        ]

    def scorer(self, model: KGEModel, x: Tensor, settings: PropagationSettings) -> QueryAnswering:
        """Scores queries under vectors of the inference graph, in the ids of the data set."""
        entities = self.completion.inference.entities
        assert entities is not None
        rows = entities.lookup(self.data.entities.labels)
        # Entities of the other split have no vector; they are neither asked about nor ranked.
        vectors = x.new_zeros(len(rows), *x.shape[1:])
        vectors[rows >= 0] = x[rows[rows >= 0]]
        return QueryAnswering(model.sheaf(), vectors, section_weight=settings.section_weight)

    def heuristic(self) -> QueryEdgeHeuristic:
        """The edge-type heuristic of the observed graph."""
        data = self.data
        return QueryEdgeHeuristic(
            data.observed(self.split), len(data.entities), len(data.relations)
        )

    def queries(self, kind: str, limit: int | None) -> tuple[QueryBatch, AnswerSets, AnswerSets]:
        """Queries of a type, or a seeded choice of them, with easy and hard answers."""
        if (kind, limit) not in self._queries:
            rows = torch.from_numpy(self.data.queries[self.split][kind])
            if limit is not None and limit < len(rows):
                generator = torch.Generator().manual_seed(0)
                rows = rows[torch.randperm(len(rows), generator=generator)[:limit]]
            batch = QueryBatch.of(kind, rows)
            easy, hard = easy_and_hard(self.executors[0], self.executors[1], batch)
            self._queries[kind, limit] = batch, easy, hard
        return self._queries[kind, limit]

    def rank(self, scorer: QueryScorer, kind: str, limit: int | None = None) -> QueryRanking:
        """Ranks the hard answers of the queries of a type, or of a seeded choice of them."""
        batch, easy, hard = self.queries(kind, limit)
        if isinstance(scorer, QueryAnswering):
            slots, columns = batch.slots.clone(), list(batch.shape.relation_slots)
            slots[:, columns] = self.relations[slots[:, columns]]
            batch = QueryBatch(batch.shape, slots)
        candidates = self.data.candidates(self.split)
        return evaluate_queries(scorer, batch, easy, hard, candidates, progress=True)


def run_cell(
    data: QueryData, model: str, preset: dict[str, Any], seed: int
) -> list[dict[str, Any]]:
    """Trains a model, chooses the iterations on validation and ranks every test query once."""
    inverse = preset["inverse_relations"]
    valid = QueryTask(data, "valid", inverse)
    module = SheafCompletion(kge=model, seed=seed, **preset["training"])  # type: ignore[arg-type]
    batches = math.ceil(len(valid.completion.train.triples) / preset["batch_size"])
    trainer = Trainer(
        max_epochs=math.ceil(preset["steps"] / batches),
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        module,
        datamodule=InductiveDataModule.from_data(valid.completion, batch_size=preset["batch_size"]),
    )
    kge = module.model.cpu().eval()
    settings = chosen_settings(valid, kge, preset, seed)
    test = QueryTask(data, "test", inverse)
    vectors = InductivePropagation(kge, test.completion, settings).vectors()
    scorers: dict[str, QueryScorer] = {
        model: test.scorer(kge, vectors, settings),
        HEURISTIC: test.heuristic(),
    }
    records = []
    for kind in TYPES:
        for name, scorer in scorers.items():
            begin = time.perf_counter()
            ranking = test.rank(scorer, kind)
            seconds = time.perf_counter() - begin
            for averaging in ("macro", "micro"):
                metrics = ranking.metrics("macro" if averaging == "macro" else "micro")
                records.append(
                    {
                        "model": name,
                        "type": kind,
                        "averaging": averaging,
                        **{k: metrics[k] for k in ("hits@1", "hits@3", "hits@10", "mrr")},
                        "queries": ranking.num_queries,
                        "seconds": seconds,
                        "iterations": settings.iterations,
                    }
                )
    return records


def chosen_settings(
    valid: QueryTask, model: KGEModel, preset: dict[str, Any], seed: int
) -> PropagationSettings:
    """The number of iterations with the best Hits@10 (micro, mean over types) on validation."""
    settings = PropagationSettings(seed=seed, **preset["settings"])
    propagation = InductivePropagation(model, valid.completion, settings)
    best = (-1.0, 0)
    for count, x in propagation.trajectory(preset.get("iterations", _ITERATIONS)):
        scorer = valid.scorer(model, x, settings)
        values = [
            valid.rank(scorer, kind, preset.get("limit", 1000)).metrics("micro")["hits@10"]
            for kind in preset["selection_types"]
        ]
        best = max(best, (sum(values) / len(values), -count))
    return replace(settings, iterations=-best[1])


def run(
    ratios: Sequence[str],
    models: Sequence[str],
    presets: Sequence[str],
    seeds: Sequence[int],
    results: Path,
    folder: Path,
) -> list[dict[str, Any]]:
    """Runs the cells that the file of results does not hold yet; writes it after each."""
    records = json.loads(results.read_text("utf-8")) if results.exists() else []
    cells = [
        (ratio, model, preset, seed)
        for ratio in ratios
        for model in models
        for preset in presets
        for seed in seeds
    ]
    for ratio, model, preset, seed in tqdm(cells, desc="cells", disable=None):
        key = config_hash(ratio, model, preset, seed)
        if any(record["config_hash"] == key for record in records):
            continue
        data = read_compact_queries(folder / f"{ratio}.npz")
        common = {"ratio": ratio, "preset": preset, "seed": seed}
        more = {"config_hash": key, "commit": current_commit()}
        found = run_cell(data, model, PRESETS[preset], seed)
        records += [common | record | more for record in found]
        results.parent.mkdir(parents=True, exist_ok=True)
        write_json(results, records)
    return records


def config_hash(ratio: str, model: str, preset: str, seed: int) -> str:
    """A hash of all that a cell depends on."""
    settings = asdict(PropagationSettings(seed=seed, **PRESETS[preset]["settings"]))
    plain = [ratio, model, preset, PRESETS[preset], settings, _ITERATIONS, seed]
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratio", nargs="+", choices=RATIOS, default=["550"])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["rotate"])
    parser.add_argument("--preset", nargs="+", choices=tuple(PRESETS), default=["best"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--all", action="store_true", help="all ratios, models and presets")
    parser.add_argument("--results", type=Path, default=Path("scripts/results/queries.json"))
    parser.add_argument(
        "--data", type=Path, help=f"folder of the .npz files (default: {ENVIRONMENT}/inductiveqe)"
    )
    options = parser.parse_args(arguments)
    folder = options.data
    if folder is None:
        if ENVIRONMENT not in os.environ:
            parser.error(f"give --data, or set {ENVIRONMENT} to a folder with inductiveqe/")
        folder = Path(os.environ[ENVIRONMENT]) / "inductiveqe"
    chosen = (options.ratio, options.model, options.preset)
    if options.all:
        chosen = (RATIOS, MODELS, tuple(PRESETS))
    records = run(*chosen, options.seed, options.results, folder)
    for key, rows in _means(records).items():
        print(*key, f"Hits@10 {rows:.3f}", sep="  ")


def _means(records: list[dict[str, Any]]) -> dict[tuple[str, ...], float]:
    """Mean Hits@10 over the seven conjunctive types and the seeds."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for record in records:
        if record["type"] in CONJUNCTIVE:
            key = tuple(record[k] for k in ("ratio", "model", "preset", "averaging"))
            groups.setdefault(key, []).append(record["hits@10"])
    return {key: sum(values) / len(values) for key, values in groups.items()}
