"""Quality of sparse training against dense training, after as many epochs.

RotatE with the loss of ``configs/model/rotate.yaml``, and candidates that are drawn, so that a
batch has a part of the entities. The figures are of transductive validation triples among all
entities of training, filtered; no test triple is read.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cells import Cell, CellStore, add_running_options, combine, run_cells
from benchmarks.command_line import integer, report_errors
from benchmarks.training import rank_triples, train_plainly
from benchmarks.transductive_data import TransductiveData
from sheafprop.data import GraILDataset
from sheafprop.data.inductive_data import InductiveData
from sheafprop.hardware import describe_hardware
from sheafprop.ranking import TripleFilter
from sheafprop.training import SheafCompletion

DATASETS = ("fb237_v4", "codex-s")
SEEDS = (0, 1, 2)
EPOCHS, BATCH_SIZE, CANDIDATES = 20, 1024, 512
TRAINING: dict[str, Any] = {
    "kge": "rotate",
    "hidden_channels": 32,
    "kge_args": {"squared": True, "entity_constraint": "unit"},
    "loss_args": {"label_smoothing": 0.1, "scale": 3.0},
    "num_candidates": CANDIDATES,
    "lr_schedule": "cosine",
}
#: The ways to train; the first one is what the others are compared with. Their learning rates have
#: the highest MRR on fb237_v4 with seed 9, of .03, .05, .1 and .2 (adam) or .3, 1 and 2 (adagrad).
WAYS: dict[str, dict[str, Any]] = {
    "dense, adam": {"sparse": False, "optimizer": "adam", "lr": 0.1},
    "sparse, adam": {"sparse": True, "optimizer": "adam", "lr": 0.2},
    "sparse, rowwise_adagrad": {"sparse": True, "optimizer": "rowwise_adagrad", "lr": 2.0},
}
METRICS = ("mrr", "hits@10")


def load(name: str) -> tuple[InductiveData, Tensor]:
    """The data to train on, and the validation triples of its training graph."""
    if name == "codex-s":
        whole = TransductiveData.load(name)
        return whole.as_inductive(), whole.valid
    data = GraILDataset(name=name).load()
    assert data.train_valid is not None
    return data, data.train_valid


def run_cell(name: str, way: str, seed: int, epochs: int, *, folder: Path) -> list[dict[str, Any]]:
    """Trains in one way and ranks the validation triples."""
    data, valid = load(name)
    module = SheafCompletion(seed=seed, **TRAINING, **WAYS[way])
    model, seconds = train_plainly(module, data, BATCH_SIZE, folder=folder, max_epochs=epochs)
    parts = {"train": data.train.triples, "valid": valid}
    known = TripleFilter(parts, data.train.num_nodes, data.num_relations)
    found = rank_triples(model, valid, known).metrics("full")
    record = {name: found[name] for name in METRICS} | {"seconds": seconds}
    record |= {"entities": data.train.num_nodes, "batch_size": BATCH_SIZE}
    facts = {"threads": torch.get_num_threads(), "hardware": describe_hardware()}
    return [record | {"training": TRAINING | WAYS[way]} | facts]


def describe(records: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each data set and way: means over seeds, and their distance to the first way."""
    lines, first = [], next(iter(WAYS))
    for name, way in combine([r["dataset"] for r in records], list(WAYS)):
        means = {}
        for key in (first, way):
            own = [r for r in records if (r["dataset"], r["way"]) == (name, key)]
            means[key] = [100 * statistics.mean(r[m] for r in own) for m in METRICS] if own else []
        if not means[way]:
            continue
        line = f"{name:9} {way:24} MRR {means[way][0]:.2f}, Hits@10 {means[way][1]:.2f}"
        if way != first and means[first]:
            gaps = [own - other for own, other in zip(means[way], means[first], strict=True)]
            line += f" ({gaps[0]:+.2f}, {gaps[1]:+.2f})"
        lines.append(line)
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the cells that are missing from the file of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--datasets", nargs="+", choices=DATASETS, default=DATASETS, help="(both)")
    add("--ways", nargs="+", choices=tuple(WAYS), default=tuple(WAYS), help="(all)")
    add("--seeds", nargs="+", type=integer(0), default=SEEDS, help="(0 1 2)")
    add("--epochs", type=integer(1), default=EPOCHS, help=f"passes over the triples ({EPOCHS})")
    add_running_options(parser, "sparse_quality.jsonl")
    options = parser.parse_args(arguments)
    store = CellStore(options.results, ("dataset", "way", "seed", "epochs"), METRICS)
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        store.check()
        cells = []
        for name, way, seed in combine(options.datasets, options.ways, options.seeds):
            key = {"dataset": name, "way": way, "seed": seed, "epochs": options.epochs}
            cells.append(Cell(key, run_cell, (name, way, seed, options.epochs)))
        limits = {"jobs": options.jobs, "threads": options.threads}
        run_cells(cells, store, again=options.again, **limits)
        for line in describe([r for r in store.records() if r["epochs"] == options.epochs]):
            print(line)
