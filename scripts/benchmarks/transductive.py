"""Transductive training checked against PyKEEN's: same start, settings and number of epochs.

Our training and PyKEEN's differ in the random order of batches and in the random negatives alone,
so both must end at the same quality. A finished cell, a model and a library, is not run again.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm.auto import tqdm

from benchmarks.cells import RESULTS, Cell, CellStore, add_running_options, run_cells
from benchmarks.command_line import check_pykeen, integer, report_errors
from benchmarks.pykeen_baseline import PyKEENBaseline
from benchmarks.training import rank_triples, train_plainly
from benchmarks.transductive_data import TransductiveData
from sheafprop.hardware import describe_hardware
from sheafprop.kge import KGEModel
from sheafprop.ranking import RankingResult
from sheafprop.training import SheafCompletion

DATASET = "codex-s"
LIBRARIES = ("sheafprop", "pykeen")
BATCH_SIZE = 512
#: By model: the epochs, and arguments of :class:`~sheafprop.training.SheafCompletion`.
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "rotate": (
        50,
        {
            "hidden_channels": 32,
            "kge_args": {"entity_constraint": None},
            "loss": "nssa",
            "loss_args": {"margin": 6.0, "adversarial_temperature": 1.0},
            "num_negatives": 16,
            "lr": 0.01,
        },
    ),
    "transe": (
        30,
        {
            "hidden_channels": 16,
            "kge_args": {"entity_constraint": None},
            "loss": "cross_entropy",
            "lr": 0.01,
        },
    ),
}


class AfterEpoch(Callback):
    """Calls a function when an epoch of training is over."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.function()


def train(
    module: SheafCompletion,
    data: TransductiveData,
    epochs: int,
    batch_size: int,
    after_epoch: Callable[[], object],
    folder: Path | None = None,
) -> tuple[KGEModel, float]:
    """Trains with our modules and nothing around them; returns the model and the seconds."""
    return train_plainly(
        module,
        data.as_inductive(),
        batch_size,
        folder=folder,
        clock=time.perf_counter,
        max_epochs=epochs,
        callbacks=[AfterEpoch(after_epoch)],
    )


def rank(model: KGEModel, data: TransductiveData) -> RankingResult:
    """Ranks the test triples among all entities, filtered, on both sides."""
    return rank_triples(model, data.test, data.known())


def run_cell(name: str, library: str, epochs: int, *, folder: Path) -> list[dict[str, Any]]:
    """Trains a model with one library and ranks the test triples with it.

    Our training goes on from its checkpoint where it was killed. PyKEEN's begins anew: it writes
    its checkpoints in place, so that a kill may leave half of one, and unpickles what they hold.
    """
    data, training = TransductiveData.load(DATASET), SETTINGS[name][1]
    module = SheafCompletion(kge=name, seed=0, **training)  # type: ignore[arg-type]
    seconds, begin = 0.0, time.perf_counter()
    with tqdm(total=epochs, desc=f"{name}, {library}", unit="epoch") as bar:
        if library == "sheafprop":
            model, seconds = train(module, data, epochs, BATCH_SIZE, bar.update, folder)
            begin = time.perf_counter()
            mrr = rank(model, data).metrics("full")["mrr"]
        else:
            torch.manual_seed(0)
            start = module.build(data.num_nodes, data.num_relations)
            baseline = PyKEENBaseline(start, data, training)
            baseline.train(epochs, BATCH_SIZE, bar.update)
            _, mrr = baseline.rank(256)
    record = {"epochs": epochs, "batch_size": BATCH_SIZE, "training": training, "mrr": mrr}
    record |= {"count": 2 * len(data.test), "seconds": seconds + time.perf_counter() - begin}
    return [record | {"threads": torch.get_num_threads(), "hardware": describe_hardware()}]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the cells that are missing from the file of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    names = list(SETTINGS)
    add("--models", nargs="+", default=names, choices=names, help=f"models ({' '.join(names)})")
    add("--epochs", type=integer(1), help="train for as many epochs; needs --results of its own")
    add_running_options(parser, "transductive.jsonl", threads=None)
    options = parser.parse_args(arguments)
    if options.epochs is not None and options.results == RESULTS / "transductive.jsonl":
        parser.error("--epochs needs --results FILE: the default is for the settings' epochs")
    store = CellStore(options.results, ("dataset", "model", "library", "epochs"), ("mrr",))
    with report_errors(parser, "finished cells are kept, and the same command goes on"):
        check_pykeen()
        store.check()
        TransductiveData.check(DATASET)
        cells = []
        for name in dict.fromkeys(options.models):
            epochs = options.epochs or SETTINGS[name][0]
            for library in LIBRARIES:
                key = {"dataset": DATASET, "model": name, "library": library, "epochs": epochs}
                cells.append(Cell(key, run_cell, (name, library, epochs)))
        limits = {"jobs": options.jobs, "threads": options.threads}
        run_cells(cells, store, again=options.again, **limits)
        for record in store.records():
            print(f"{record['model']:8}{record['library']:12}MRR {record['mrr']:.4f}")
