"""Training that reads and writes only the rows of a batch: where it works, and clipping in it."""

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor

from sheafprop.distributed import ShardedTable
from sheafprop.training.row_optimizers import RowAdam, RowwiseAdagrad

#: Beyond so many entities, training is sparse where it can be.
MANY_ENTITIES = 200_000

#: Optimizers that take sparse gradients and then leave all other rows alone.
_SPARSE_OPTIMIZERS = (RowAdam, RowwiseAdagrad, torch.optim.Adagrad, torch.optim.SGD)


def find_obstacle(
    *, needs_negatives: bool, num_candidates: int | str | None, weight_decay: float
) -> str | None:
    """What in a model's options needs the whole table in every step, and what to do; or None."""
    if not needs_negatives and num_candidates is None:
        return (
            "the cross entropy compares with all entities: give a number to "
            "--model.num_candidates, or 'auto', or a loss with negatives"
        )
    if weight_decay:
        return (
            "weight decay changes every row of the table in every step: give --model.weight_decay 0"
        )
    return None


def choose_sparse(
    wanted: bool | str, num_nodes: int, obstacle: str | None, optimizer: Any, trainer: Trainer
) -> tuple[bool, str | None]:
    """Whether training is sparse, and what to say of it.

    Args:
        wanted (bool or str): The option; ``"auto"`` for sparse training of many entities.
        num_nodes (int): Number of entities.
        obstacle (str, optional): What :func:`find_obstacle` found.
        optimizer (str or callable): The optimizer, by its name or as a function.
        trainer (Trainer): The trainer.

    Raises:
        ValueError: If sparse training is asked for and the trainer's strategy does not allow it.
    """
    if wanted is False:
        return False, None
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        strategy = type(trainer.strategy).__name__
        obstacle = f"sparse gradients go with one device or --trainer.strategy ddp (got {strategy})"
        if wanted is True:
            raise ValueError(f"'sparse' cannot be true: {obstacle}")
    if wanted is True:
        return True, None
    if num_nodes <= MANY_ENTITIES:
        return False, None
    if obstacle is None and callable(optimizer):
        obstacle = "an optimizer of a class may not take sparse gradients: try --model.sparse true"
    if obstacle is not None:
        return False, f"every step reads and writes all {num_nodes:,} entities, since {obstacle}"
    return True, (
        f"each step reads and writes only the rows of its batch, since there are {num_nodes:,} "
        f"entities, more than {MANY_ENTITIES:,} (--model.sparse false for the whole table)"
    )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuses an optimizer that sparse gradients do not go with.

    Raises:
        ValueError: If it is of another class, or moves rows without gradient.
    """
    name = type(optimizer).__name__
    if not isinstance(optimizer, _SPARSE_OPTIMIZERS):
        known = ", ".join(kind.__name__ for kind in _SPARSE_OPTIMIZERS)
        raise ValueError(
            f"{name} does not go with --model.sparse true: give one of {known}, or the name 'adam'"
        )
    for group in optimizer.param_groups:
        for option in ("weight_decay", "momentum"):
            if group.get(option):
                raise ValueError(
                    f"{name} with {option} changes every row of the table in every step, which "
                    f"does not go with --model.sparse true (got {option}={group[option]})"
                )


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[torch.nn.Parameter],
    bound: float,
    algorithm: str | None,
    shared: ShardedTable | None = None,
) -> None:
    """Clips gradients, sparse ones by the values of their rows, as torch clips dense ones.

    Args:
        parameters (iterable): The parameters; sparse gradients must be coalesced.
        bound (float): The bound of each value, or of the norm of all of them together.
        algorithm (str, optional): ``"value"`` or ``"norm"``. (default: the norm)
        shared (ShardedTable, optional): The table, where each process has a part of it.
    """
    found = [(p, p.grad) for p in parameters if p.grad is not None]
    values = [grad._values() if grad.is_sparse else grad for _, grad in found]
    if algorithm == "value":
        for value in values:
            value.clamp_(-bound, bound)
        return
    norm = torch.nn.utils.get_total_norm(values)
    if shared is not None:
        # The others are the same on all processes.
        parts: tuple[list[Tensor], list[Tensor]] = [], []
        for (parameter, _), value in zip(found, values, strict=True):
            parts[parameter is shared.weight].append(value)
        others, own = (torch.nn.utils.get_total_norm(part).square() for part in parts)
        norm = (others + shared.ranks.all_reduce(own)).sqrt()
    scale = (bound / (norm + 1e-6)).clamp(max=1.0)
    for value in values:
        value.mul_(scale)
