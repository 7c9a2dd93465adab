"""Derives the number of training steps and of candidates from the size of the graph."""

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from sheafprop.checks import check_integer
from sheafprop.data.inductive_data import InductiveData
from sheafprop.progress import ProgressLines

#: Number of entities up to which all of them are candidates of the cross entropy.
_SMALL_TABLE = 1024
#: Number of pairs of a training triple and an entity up to which all entities are candidates, too:
#: an epoch is cheap there, and small graphs have the fewest triples to learn from.
_SMALL_EPOCH = 2**24
#: Fraction of the entities that are candidates of larger graphs, and the maximum number.
_SHARE, _MOST = 0.4, 2048
#: Number of steps between validations. Few suffice, since the learning rate decays to zero and the
#: last weights are nearly always the best.
_STEPS_OF_CHECK = 400


def count_candidates(num_nodes: int, num_triples: int) -> int | None:
    """Returns the number of candidates sampled for a batch in addition to its own entities, None
    for all.

    Two fifths of the entities, 2048 at most. All of them up to 1024 entities, or where entities
    times triples are at most 16.8 million (:math:`2^{24}`).

    Args:
        num_nodes (int): Number of training entities.
        num_triples (int): Number of training triples.
    """
    if num_nodes <= _SMALL_TABLE or num_nodes * num_triples <= _SMALL_EPOCH:
        return None
    return min(_MOST, math.ceil(_SHARE * num_nodes))


def count_training_steps(num_triples: int, batch_size: int) -> int:
    r"""Returns the number of training steps: :math:`100 + 30 \sqrt{m / 1000}` for batches of 1024
    triples.

    The number is inversely proportional to the square root of the batch size. Larger graphs get
    more steps but fewer epochs. The learning rate decays to zero over these steps.

    Args:
        num_triples (int): The number :math:`m` of training triples.
        batch_size (int): Triples in a batch.
    """
    check_integer("batch_size", batch_size, 1)
    steps = 100 + 30 * math.sqrt(num_triples / 1000)
    return math.ceil(steps * math.sqrt(1024 / batch_size))


class StepBudget(Callback):
    """Sets the number of training steps by the size of the training graph.

    Steps are rounded to whole epochs. Validation runs about every 400 steps and after the last
    epoch. ``max_epochs`` or ``max_steps`` of the trainer take precedence.

    Args:
        checks (int): The maximum number of validations.
    """

    def __init__(self, checks: int = 5):
        check_integer("checks", checks, 1)
        self.checks = checks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.apply(trainer, datamodule.data, datamodule.batch_size)

    def apply(self, trainer: Trainer, data: InductiveData, batch_size: int) -> None:
        """Sets the epochs of a trainer without ``max_epochs`` and ``max_steps``.

        Args:
            trainer (Trainer): The trainer.
            data (InductiveData): The training data.
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
    """Prints progress lines on standard error, for outputs without a progress bar."""

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
