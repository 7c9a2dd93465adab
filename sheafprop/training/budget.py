"""How long to train, and how many entities to compare with, by the size of the graph."""

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from sheafprop.checks import check_integer
from sheafprop.data.inductive_data import InductiveData
from sheafprop.progress import ProgressLines

#: Up to so many entities, the cross entropy compares with all of them.
_SMALL_TABLE = 1024
#: Of more, it compares with such a share, and with so many at most.
_SHARE, _MOST = 0.4, 2048
#: Training is validated once in so many steps: the learning rate falls to zero, so that the last
#: weights are nearly always the best.
_STEPS_OF_CHECK = 400


def count_candidates(num_nodes: int) -> int | None:
    """The entities that a batch is compared with beside its own, None for all.

    Two fifths of the entities, 2048 at most; up to 1024 entities, all of them.

    Args:
        num_nodes (int): Number of training entities.
    """
    if num_nodes <= _SMALL_TABLE:
        return None
    return min(_MOST, math.ceil(_SHARE * num_nodes))


def count_training_steps(num_triples: int, batch_size: int) -> int:
    r"""The batches to train for: :math:`100 + 30 \sqrt{m / 1000}` of 1024 triples.

    Smaller batches get more of them, by the square root of their number. Larger graphs get more
    steps, but fewer passes over their triples. The learning rate falls to zero over these steps.

    Args:
        num_triples (int): The number :math:`m` of training triples.
        batch_size (int): Triples in a batch.
    """
    check_integer("batch_size", batch_size, 1)
    steps = 100 + 30 * math.sqrt(num_triples / 1000)
    return math.ceil(steps * math.sqrt(1024 / batch_size))


class StepBudget(Callback):
    """Ends training after as many steps as the size of the training graph asks for.

    They are rounded to whole epochs, of which some are validated, among them the last one: one in
    some 400 steps. Where the trainer has an end of its own (``max_epochs`` or ``max_steps``), that
    holds.

    Args:
        checks (int): How often training is validated, at most.
    """

    def __init__(self, checks: int = 5):
        check_integer("checks", checks, 1)
        self.checks = checks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.apply(trainer, datamodule.data, datamodule.batch_size)

    def apply(self, trainer: Trainer, data: InductiveData, batch_size: int) -> None:
        """Sets the epochs of a trainer without an end.

        Args:
            trainer (Trainer): The trainer.
            data (InductiveData): The data it will train on.
            batch_size (int): Triples in a batch.
        """
        if trainer.max_epochs not in (None, -1) or trainer.max_steps != -1:
            return
        batches = math.ceil(data.train.num_edges / batch_size)
        steps = count_training_steps(data.train.num_edges, batch_size)
        checks = min(self.checks, max(1, round(steps / _STEPS_OF_CHECK)))
        every = max(1, round(steps / batches / checks))
        epochs = every * max(1, round(steps / batches / every))
        trainer.fit_loop.max_epochs = epochs
        trainer.check_val_every_n_epoch = every


def apply_budget(trainer: Trainer, datamodule: Any) -> None:
    """Sets the epochs of a trainer by its :class:`StepBudget`, if it has one."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, StepBudget):
            callback.apply(trainer, datamodule.data, datamodule.batch_size)


class TrainingLines(Callback):
    """Writes a line on standard error now and then, where no bar can be seen."""

    def __init__(self) -> None:
        self._lines: ProgressLines | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        total = trainer.estimated_stepping_batches
        if trainer.is_global_zero and total != math.inf:
            self._lines = ProgressLines(
                int(total), desc="training", unit="steps", initial=trainer.global_step
            )

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        if self._lines is None:
            return
        loss = trainer.callback_metrics.get("train/loss")
        self._lines.set_postfix_str("" if loss is None else f"loss {float(loss):.3f}")
        self._lines.update(trainer.global_step - self._lines.n)
