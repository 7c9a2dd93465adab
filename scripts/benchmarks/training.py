"""Training for experiments: our modules and a trainer with nothing around them."""

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm.auto import tqdm

from sheafprop.data import KnowledgeGraph, hold_out_mask
from sheafprop.data.inductive_data import InductiveData
from sheafprop.kge import KGEModel
from sheafprop.ranking import RankingResult, TripleFilter, evaluate
from sheafprop.training.checkpoint_state import AtomicCheckpointIO
from sheafprop.training.inductive_data_module import InductiveDataModule
from sheafprop.training.sheaf_completion import SheafCompletion

#: Seconds between two checkpoints of a training, at least; it is stored at the ends of epochs.
CHECKPOINT_SECONDS = 60.0


class ResumePoint(Callback):
    """Stores a training in a folder now and then, with the seconds that it has taken so far.

    Args:
        folder (Path, optional): Where the checkpoint lies; None to store nothing.
        clock: What counts the seconds.
    """

    def __init__(self, folder: Path | None, clock: Callable[[], float]) -> None:
        self.path = None if folder is None else folder / "last.ckpt"
        self.clock, self.begin = clock, clock()
        self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.clock() - self.begin

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        due = time.monotonic() - self._saved >= CHECKPOINT_SECONDS
        # A checkpoint does not hold that training is about to stop.
        if self.path is not None and due and not trainer.should_stop:
            trainer.save_checkpoint(self.path)
            self._saved = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.begin -= state_dict["seconds"]


class BatchBar(Callback):
    """A progress bar over the batches of training, on a terminal's standard error."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        total = trainer.estimated_stepping_batches
        self.bar = tqdm(total=total, initial=trainer.global_step, desc="training", unit="batch",
                        disable=None, leave=False)  # fmt: skip

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        self.bar.update()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.close()


def train_plainly(
    module: SheafCompletion,
    data: InductiveData,
    batch_size: int,
    *,
    folder: Path | None = None,
    clock: Callable[[], float] = time.process_time,
    callbacks: Sequence[Callback] = (),
    **changes: Any,
) -> tuple[KGEModel, float]:
    """Trains on the training graph; returns the model with its last weights, and the seconds.

    Training takes place on the CPU, and nothing is logged or validated, unless further arguments of
    the trainer say so. With a folder, a training that was killed goes on from its checkpoint there,
    as if it had not been; its seconds are counted together.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    arguments: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "plugins": [AtomicCheckpointIO()],
    }
    point = ResumePoint(folder, clock)
    callbacks = [*callbacks, point]
    end = None if folder is None else folder / "trained.pt"
    if end is not None and end.exists():
        stored = torch.load(end, weights_only=True)
        model = module.kge = module.build(data.train.num_nodes, data.num_relations)
        model.load_state_dict(stored["model"])
        for callback, state in zip(callbacks, stored["callbacks"], strict=True):
            callback.load_state_dict(state)
        return model.eval(), point.seconds
    last = point.path if point.path is not None and point.path.exists() else None
    trainer = Trainer(callbacks=callbacks, **(arguments | changes))
    datamodule = InductiveDataModule.from_data(data, batch_size=batch_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers")
        warnings.filterwarnings("ignore", message=".*LeafSpec")
        trainer.fit(module, datamodule=datamodule, ckpt_path=last)
    model = module.model.cpu().eval()
    if end is not None:
        states = [callback.state_dict() for callback in callbacks]
        AtomicCheckpointIO().save_checkpoint(
            {"model": model.state_dict(), "callbacks": states}, end
        )
    return model, point.seconds


def hold_out(
    data: InductiveData, seed: int, fraction: float = 0.1
) -> tuple[InductiveData, torch.Tensor]:
    """The data with a part of the training triples held out, and these triples."""
    triples = data.train.triples
    held = hold_out_mask(triples, fraction=fraction, seed=seed)
    train = KnowledgeGraph.from_triples(
        triples[~held],
        num_nodes=data.train.num_nodes,
        num_relations=data.num_relations,
        entities=data.train.entities,
        relations=data.train.relations,
    )
    return replace(data, train=train), triples[held]


@torch.no_grad()
def rank_triples(model: KGEModel, triples: torch.Tensor, known: TripleFilter) -> RankingResult:
    """Filtered ranks of triples of the training graph's entities, both sides."""
    x = model.entity_vectors()
    return evaluate(
        lambda head, relation: model.score_tails(x, head, relation),
        lambda relation, tail: model.score_heads(x, relation, tail),
        triples,
        known,
    )
