"""Hits@10 on validation against epochs, for models whose training takes hours.

Every point is stored as it is known, and an interrupted training goes on from its checkpoint.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.cells import CellStore
from benchmarks.completion_cell import load_data, train_model
from benchmarks.measuring import current_commit
from benchmarks.paper_diffusion import own_start, text_trajectory
from benchmarks.presets import Config, config_hash
from benchmarks.training import hold_out, rank_triples
from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.propagation_search import inference_filter
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.ranking import TripleFilter, evaluate
from sheafprop.training import SheafCompletion

KEYS = ("dataset", "model", "seed", "config_hash", "epochs")
FIELDS = ("validation_hits@10", "iterations")
#: Steps with wide maps cost much, and further ones change little.
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ValidationCurve(Callback):
    """Stores Hits@10 of validation triples after some epochs.

    Args:
        store (CellStore): Where points go.
        key (dict): What tells this curve from others.
        data (InductiveData): Where to diffuse, and whose validation triples are ranked.
        step_size (float): Step size of the diffusion.
        known (TripleFilter): Known triples of the training graph.
        every (int): Epochs between points.
    """

    def __init__(
        self,
        store: CellStore,
        key: dict[str, Any],
        data: InductiveData,
        step_size: float,
        known: TripleFilter,
        every: int,
    ) -> None:
        self.store, self.key, self.data, self.known = store, key, data, known
        self.step_size, self.every = step_size, every
        self.seconds, self._begin = 0.0, time.process_time()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = time.process_time()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds += time.process_time() - self._begin
        epochs = trainer.current_epoch + 1
        if epochs % self.every:
            return
        assert isinstance(pl_module, SheafCompletion)
        assert self.data.valid is not None
        assert self.data.train_valid is not None
        model = pl_module.model
        found = {}
        start = own_start(model, self.data, self.key["seed"])
        for count, x in text_trajectory(model, self.data, start, self.step_size, COUNTS):
            scorer = SectionScorer(model, x, (1.0,))
            scores = scorer.score_tails, scorer.score_heads
            result = evaluate(*scores, self.data.valid, inference_filter(self.data))
            found[count] = result.metrics("full")["hits@10"]
        chosen = max(found, key=lambda count: (found[count], -count))
        held = rank_triples(model, self.data.train_valid, self.known).metrics("full")["hits@10"]
        record = {
            "validation_hits@10": found[chosen],
            "iterations": chosen,
            "held_out_hits@10": held,
            "seconds_train": round(self.seconds, 1),
            "commit": current_commit(),
        }
        self.store.put(self.key | {"epochs": epochs}, [record])

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds = state_dict["seconds"]


def follow_training(
    config: Config, seed: int, epochs: int, every: int, path: Path, root: str | None = None
) -> None:
    """Trains as the preset ``paper`` does for a number of epochs, and stores the curve.

    Args:
        config (dict): The configuration.
        seed (int): Seed of all that is drawn.
        epochs (int): Epochs to train for, all in all.
        every (int): Epochs between points.
        path (Path): The file of points.
        root (str, optional): Folder of the benchmark's files.
    """
    data = load_data(config, root)
    part, held = hold_out(data, seed=0)
    known = TripleFilter(data.train.triples, data.train.num_nodes, data.num_relations)
    store = CellStore(path, KEYS, FIELDS)
    key = {"dataset": config["data"]["name"], "model": config["model"]["kge"], "seed": seed}
    key["config_hash"] = config_hash(config)
    store.check()
    folder = store.folder(key)
    (folder / "trained.pt").unlink(missing_ok=True)  # of a shorter training
    (step_size,) = config["model"]["propagation"]["step_size"]
    shown = replace(data, train_valid=held)
    curve = ValidationCurve(store, key, shown, step_size, known, every)
    module = SheafCompletion(**(config["model"] | {"seed": seed}))
    part = replace(part, train_valid=None, valid=None, test=None)
    train_model(module, config, part, folder=folder, callbacks=[curve], max_epochs=epochs)
