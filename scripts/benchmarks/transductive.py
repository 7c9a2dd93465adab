"""Transductive training checked against PyKEEN's: same start, settings and number of epochs.

Our training and PyKEEN's differ in the random order of batches and in the random negatives alone,
so both must end at the same quality. A finished cell, a model and a library, is not run again.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm.auto import tqdm

from benchmarks.cell_store import CellStore
from benchmarks.command_line import integer, needs_pykeen, told_errors
from benchmarks.commit import current_commit
from benchmarks.plain_training import train_plainly
from benchmarks.pykeen_baseline import PyKEENBaseline
from benchmarks.transductive_data import TransductiveData
from sheafprop.hardware import describe_hardware
from sheafprop.kge import KGEModel
from sheafprop.ranking import RankingResult, evaluate
from sheafprop.training import SheafCompletion

DATASET = "codex-s"
RESULTS = Path("scripts/results/transductive.json")
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

    def __init__(self, function: Any) -> None:
        self.function = function

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.function()


def train(
    module: SheafCompletion,
    data: TransductiveData,
    epochs: int,
    batch_size: int,
    after_epoch: Any,
) -> KGEModel:
    """Trains with our modules and nothing around them."""
    return train_plainly(
        module,
        data.as_inductive(),
        batch_size,
        max_epochs=epochs,
        callbacks=[AfterEpoch(after_epoch)],
    )


@torch.no_grad()
def rank(model: KGEModel, data: TransductiveData) -> RankingResult:
    """Ranks the test triples among all entities, filtered, on both sides."""
    x = model.entity_vectors()
    return evaluate(
        lambda head, relation: model.score_tails(x, head, relation),
        lambda relation, tail: model.score_heads(x, relation, tail),
        data.test,
        data.known(),
    )


def run_cell(name: str, library: str, data: TransductiveData, epochs: int) -> dict[str, Any]:
    """Trains a model with one library and ranks the test triples with it."""
    training = SETTINGS[name][1]
    module = SheafCompletion(kge=name, seed=0, **training)  # type: ignore[arg-type]
    begin = time.perf_counter()
    with tqdm(total=epochs, desc=f"{name}, {library}", unit="epoch") as bar:
        if library == "sheafprop":
            model = train(module, data, epochs, BATCH_SIZE, bar.update)
            mrr = rank(model, data).metrics("full")["mrr"]
        else:
            torch.manual_seed(0)
            start = module.build(data.num_nodes, data.num_relations)
            baseline = PyKEENBaseline(start, data, training)
            baseline.train(epochs, BATCH_SIZE, bar.update)
            _, mrr = baseline.rank(256)
    return {
        "epochs": epochs,
        "batch_size": BATCH_SIZE,
        "training": training,
        "mrr": mrr,
        "count": 2 * len(data.test),
        "seconds": time.perf_counter() - begin,
        "threads": torch.get_num_threads(),
        "hardware": describe_hardware(),
        "commit": current_commit(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the cells that are missing from the file of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    names = list(SETTINGS)
    add("--models", nargs="+", default=names, choices=names, help=f"models ({' '.join(names)})")
    add("--epochs", type=integer(1), help="train for as many epochs; needs an --out of its own")
    add("--out", type=Path, default=RESULTS, help=f"where finished cells are kept ({RESULTS})")
    options = parser.parse_args(arguments)
    if options.epochs is not None and options.out == RESULTS:
        parser.error(f"--epochs needs --out FILE: {RESULTS} is for the epochs of the settings")
    store = CellStore(options.out, ("dataset", "model", "library"), ("epochs", "mrr"))
    with told_errors(parser, "finished cells are kept, and the same command goes on"):
        needs_pykeen()
        store.check()
        data = TransductiveData.load(DATASET)
        for name in options.models:
            epochs = options.epochs or SETTINGS[name][0]
            for library in LIBRARIES:
                cell = {"dataset": DATASET, "model": name, "library": library}
                done = cell | {"epochs": epochs}
                if not any(done.items() <= record.items() for record in store.records()):
                    store.put(cell, [run_cell(name, library, data, epochs)])
        for record in store.records():
            print(f"{record['model']:8}{record['library']:12}MRR {record['mrr']:.4f}")
