"""Optimizers and schedules by name, and what of their options holds where a run is resumed."""

import math
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.optim.lr_scheduler import LambdaLR

from sheafprop.checks import check_integer
from sheafprop.kge import KGEModel
from sheafprop.training.sparse_rows import RowAdam, RowwiseAdagrad

_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


def check_options(lr: float, weight_decay: float, lr_epochs: int | None) -> None:
    """Raises :class:`ValueError` if an option is out of its range."""
    if not lr > 0:
        raise ValueError(f"'lr' must be positive (got {lr})")
    if not weight_decay >= 0:
        raise ValueError(f"'weight_decay' must not be negative (got {weight_decay})")
    if lr_epochs is not None:
        check_integer("lr_epochs", lr_epochs, 1)


def build_optimizer(
    name: str, model: KGEModel, *, lr: float, weight_decay: float, clips_gradients: bool = False
) -> torch.optim.Optimizer:
    """An optimizer of a model's parameters by its name; Adam updates all of them in one pass.

    Lightning cannot clip gradients that such a fused optimizer may unscale. Where the entity table
    is sparse, Adam is :class:`RowAdam`.
    """
    options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
    table = model.node_emb
    if name == "rowwise_adagrad":
        others = [p for p in model.parameters() if p is not table.weight]
        groups = [{"params": [table.weight], "rowwise": True}, {"params": others}]
        return RowwiseAdagrad(groups, **options)
    if name == "adam" and table.sparse:
        return RowAdam(model.parameters(), **options)
    if name == "adam" and not clips_gradients:
        options["fused"] = True
    return _OPTIMIZERS[name](model.parameters(), **options)


def cosine_schedule(optimizer: torch.optim.Optimizer, total: int) -> LambdaLR:
    """Half a cosine from the full learning rate to zero over ``total`` steps; zero afterwards.

    Torch's ``CosineAnnealingLR`` computes a step from the one before, and so cannot be stretched
    to a longer training where a run is resumed.
    """
    return LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * min(1.0, step / max(1, total)))) / 2
    )


def count_schedule_steps(trainer: Trainer, epochs: int | None) -> int:
    """The steps of a schedule that spans some epochs, or the whole training where that is None.

    Raises:
        ValueError: If the training has no end, or goes on after the schedule has reached zero.
    """
    end = trainer.estimated_stepping_batches
    total: float = end
    if epochs:
        total = epochs * math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
    if total == math.inf:
        raise ValueError(
            "the cosine schedule needs an end: the trainer's 'max_epochs' or 'max_steps'"
        )
    if total < end and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        raise ValueError(
            f"the learning rate reaches zero after {epochs} epochs ({int(total)} steps of {end}), "
            "so that later ones would change nothing: raise --model.lr_epochs to the epochs of "
            "--trainer.max_epochs, or leave it out with --model.lr_epochs null"
        )
    return int(total)


def prefer_options(checkpoint: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Replaces the options stored with a checkpoint's optimizer and schedules by the current ones.

    Learning rate, weight decay, momentum and the like are stored with the state of the optimizer,
    and base rates with that of the schedule; loading would bring the old ones back.
    """
    for state in checkpoint.get("optimizer_states", []):
        for stored, fresh in zip(state["param_groups"], optimizer.param_groups, strict=True):
            options = {key: value for key, value in fresh.items() if key != "params"}
            stored.update(options, initial_lr=options["lr"])
    for state in checkpoint.get("lr_schedulers", []):
        state["base_lrs"] = [group["lr"] for group in optimizer.param_groups]


def move_schedule(schedule: LambdaLR, step: int) -> None:
    """Puts a schedule where its training stands, as its span may have changed since."""
    schedule.last_epoch = schedule.last_epoch or step  # 0 where there was no schedule before
    for group, base, factor in zip(
        schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(schedule.last_epoch)
    schedule._last_lr = [group["lr"] for group in schedule.optimizer.param_groups]
