"""Optimizers and schedules by name, their options in resumed runs, and sparse training."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from sheafprop.checks import check_integer
from sheafprop.distributed import ShardedTable
from sheafprop.kge import KGEModel


class RowwiseAdagrad(torch.optim.Optimizer):
    r"""Adagrad with one accumulator per row of a table, as in PyTorch-BigGraph
    (`arXiv:1903.12287 <https://arxiv.org/abs/1903.12287>`_) and fbgemm.

    For a row :math:`\mathbf{x}_i` of width :math:`m` with gradient :math:`\mathbf{g}_i`

    .. math::
        s_i \leftarrow s_i + \frac{1}{m} \| \mathbf{g}_i \|^2, \qquad
        \mathbf{x}_i \leftarrow \mathbf{x}_i - \eta \, \frac{\mathbf{g}_i}{\sqrt{s_i} + \epsilon}

    A row without gradient keeps its values and its accumulator, so sparse and dense gradients give
    the same result. With sparse gradients, only their rows are read and written.

    Args:
        params (iterable): Parameters or parameter groups. Groups with :obj:`rowwise=True` have one
            accumulator per row, the others one per number, as in :class:`torch.optim.Adagrad`.
        lr (float): The learning rate :math:`\eta`.
        weight_decay (float, optional): Weight decay of dense gradients. (default: :obj:`0.0`)
        eps (float, optional): :math:`\epsilon`. (default: :obj:`1e-10`)

    Raises:
        RuntimeError: In a step with weight decay and a sparse gradient.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        weight_decay: float = 0.0,
        eps: float = 1e-10,
        rowwise: bool = False,
    ) -> None:
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, eps=eps, rowwise=rowwise))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Performs a step, after computing gradients with the closure, if there is one."""
        loss = _call(closure)
        for group in self.param_groups:
            lr, eps = group["lr"], group["eps"]
            for parameter in group["params"]:
                grad = parameter.grad
                if grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    shape = parameter.shape[:1] if group["rowwise"] else parameter.shape
                    state["sum"] = parameter.new_zeros(shape)
                total = state["sum"]
                if grad.is_sparse:
                    if group["weight_decay"]:
                        raise RuntimeError("weight decay is not compatible with sparse gradients")
                    rows, grad = _rows(grad)
                    found = total.index_select(0, rows).add_(_squares(grad, group["rowwise"]))
                    total.index_copy_(0, rows, found)
                    change = grad / _along(found.sqrt_().add_(eps), grad)
                    parameter.index_add_(0, rows, change, alpha=-lr)
                    continue
                if group["weight_decay"]:
                    grad = grad.add(parameter, alpha=group["weight_decay"])
                total.add_(_squares(grad, group["rowwise"]))
                parameter.addcdiv_(grad, _along(total.sqrt().add_(eps), grad), value=-lr)
        return loss


class RowAdam(torch.optim.Adam):
    """Adam that updates only the rows of sparse gradients.

    Rows of a sparse gradient and their moments are updated as in :class:`torch.optim.Adam`; all
    other rows and moments are unchanged, as in :class:`torch.optim.SparseAdam`. A row in every
    batch is updated as by the dense optimizer. A row in few batches is not moved between them by
    its momentum. All rows share one step count.

    Args:
        params (iterable): Parameters or parameter groups.
        **kwargs: Arguments of :class:`torch.optim.Adam`.

    Raises:
        RuntimeError: In a step with weight decay and a sparse gradient.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Performs a step, after computing gradients with the closure, if there is one."""
        loss, sparse = _call(closure), []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._step_rows(parameter, group)
                    sparse.append((parameter, parameter.grad))
                    parameter.grad = None
        try:
            super().step()
        finally:
            for parameter, grad in sparse:
                parameter.grad = grad
        return loss

    def _step_rows(self, parameter: Tensor, group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            raise RuntimeError("weight decay is not compatible with sparse gradients")
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step, (beta1, beta2) = float(state["step"]), group["betas"]
        rows, grad = _rows(parameter.grad)
        mean = state["exp_avg"].index_select(0, rows).lerp_(grad, 1 - beta1)
        square = state["exp_avg_sq"].index_select(0, rows).mul_(beta2)
        square.addcmul_(grad, grad, value=1 - beta2)
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        scale = square.sqrt_().div_((1 - beta2**step) ** 0.5).add_(group["eps"])
        rate = group["lr"] / (1 - beta1**step)
        parameter.index_add_(0, rows, mean.div_(scale), alpha=-rate)


def _call(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _rows(grad: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distinct rows of a sparse gradient and their values."""
    grad = grad.coalesce()
    return grad.indices()[0], grad.values()


def _squares(grad: Tensor, rowwise: bool) -> Tensor:
    return grad.square().flatten(1).mean(1) if rowwise else grad.square()


def _along(scale: Tensor, grad: Tensor) -> Tensor:
    """Expands the scale of rows or numbers to the dimensions of their gradient."""
    return scale.view(*scale.shape, *[1] * (grad.dim() - scale.dim()))


#: Number of entities above which training is sparse by default.
MANY_ENTITIES = 200_000

#: Optimizers that support sparse gradients and do not change other rows.
_SPARSE_OPTIMIZERS = (RowAdam, RowwiseAdagrad, torch.optim.Adagrad, torch.optim.SGD)


def find_obstacle(
    *, needs_negatives: bool, num_candidates: int | str | None, weight_decay: float
) -> str | None:
    """Returns the reason why every step needs the whole table, with advice; None if none does."""
    if not needs_negatives and num_candidates is None:
        return (
            "the cross entropy uses all entities as candidates: set --model.num_candidates to a "
            "number or 'auto', or choose a loss with negatives"
        )
    if weight_decay:
        return (
            "weight decay changes every row of the table in every step: set --model.weight_decay 0"
        )
    return None


def choose_sparse(
    wanted: bool | str, num_nodes: int, obstacle: str | None, optimizer: Any, trainer: Trainer
) -> tuple[bool, str | None]:
    """Chooses whether training is sparse, and returns a note on the choice.

    Args:
        wanted (bool or str): The option; ``"auto"`` for sparse training of large graphs.
        num_nodes (int): Number of entities.
        obstacle (str, optional): The result of :func:`find_obstacle`.
        optimizer (str or callable): The name of the optimizer, or a callable.
        trainer (Trainer): The trainer.

    Raises:
        ValueError: If sparse training is requested but not supported by the strategy or by the
            options.
    """
    if wanted is False:
        return False, None
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        strategy = type(trainer.strategy).__name__
        obstacle = (
            f"sparse gradients need a single device or --trainer.strategy ddp (got {strategy})"
        )
        if wanted is True:
            raise ValueError(f"'sparse' cannot be true: {obstacle}")
    if wanted is True:
        return True, None
    if num_nodes <= MANY_ENTITIES:
        return False, None
    if obstacle is None and callable(optimizer):
        obstacle = "an injected optimizer may not support sparse gradients: try --model.sparse true"
    if obstacle is not None:
        return False, f"every step reads and writes all {num_nodes:,} entities, since {obstacle}"
    return True, (
        f"each step reads and writes only the rows of its batch, since there are {num_nodes:,} "
        f"entities, more than {MANY_ENTITIES:,} (--model.sparse false for the whole table)"
    )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Checks that an optimizer supports sparse gradients.

    Raises:
        ValueError: If its class is not supported, or it updates rows without gradient.
    """
    name = type(optimizer).__name__
    if not isinstance(optimizer, _SPARSE_OPTIMIZERS):
        known = ", ".join(kind.__name__ for kind in _SPARSE_OPTIMIZERS)
        raise ValueError(
            f"{name} does not support --model.sparse true: choose one of {known}, or 'adam'"
        )
    for group in optimizer.param_groups:
        for option in ("weight_decay", "momentum"):
            if group.get(option):
                raise ValueError(
                    f"{name} with {option} changes every row of the table in every step, which "
                    f"--model.sparse true does not support (got {option}={group[option]})"
                )


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[torch.nn.Parameter],
    bound: float,
    algorithm: str | None,
    shared: ShardedTable | None = None,
) -> None:
    """Clips gradients as torch does, including sparse ones.

    Args:
        parameters (iterable): The parameters. Sparse gradients must be coalesced.
        bound (float): The bound of each value, or of the total norm.
        algorithm (str, optional): ``"value"`` or ``"norm"``. (default: ``"norm"``)
        shared (ShardedTable, optional): The table, if it is sharded among processes.
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


_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


def check_options(lr: float, weight_decay: float, lr_epochs: int | None) -> None:
    """Checks the options of the optimizer.

    Raises:
        ValueError: If an option is out of range.
    """
    if not lr > 0:
        raise ValueError(f"'lr' must be positive (got {lr})")
    if not weight_decay >= 0:
        raise ValueError(f"'weight_decay' must not be negative (got {weight_decay})")
    if lr_epochs is not None:
        check_integer("lr_epochs", lr_epochs, 1)


def build_optimizer(
    name: str, model: KGEModel, *, lr: float, weight_decay: float, clips_gradients: bool = False
) -> torch.optim.Optimizer:
    """Builds an optimizer by name. ``"adam"`` is fused, or :class:`RowAdam` for sparse gradients.

    Adam is not fused if gradients are clipped, which Lightning does not support for it.
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
    """Builds a schedule that decays as a half cosine to zero over ``total`` steps.

    ``CosineAnnealingLR`` of torch computes each step from the previous one, so it cannot be
    extended when a run is resumed for more epochs.
    """
    return LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * min(1.0, step / max(1, total)))) / 2
    )


def count_schedule_steps(trainer: Trainer, epochs: int | None) -> int:
    """Returns the number of steps of a schedule that spans ``epochs``, or the whole training.

    Raises:
        ValueError: If the training has no end, or is longer than the schedule.
    """
    end = trainer.estimated_stepping_batches
    total: float = end
    if epochs:
        total = epochs * math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
    if total == math.inf:
        raise ValueError("the cosine schedule needs 'max_epochs' or 'max_steps' of the trainer")
    if total < end and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        raise ValueError(
            f"the learning rate reaches zero after {epochs} epochs ({int(total)} steps of {end}), "
            "so later epochs would change nothing: raise --model.lr_epochs to "
            "--trainer.max_epochs, or set --model.lr_epochs null"
        )
    return int(total)


def prefer_options(checkpoint: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Replaces the options in the stored state of the optimizer and schedules by the current ones.

    Learning rate, weight decay, momentum and base rates are part of that state, so loading it would
    restore the old values.
    """
    for state in checkpoint.get("optimizer_states", []):
        for stored, fresh in zip(state["param_groups"], optimizer.param_groups, strict=True):
            options = {key: value for key, value in fresh.items() if key != "params"}
            stored.update(options, initial_lr=options["lr"])
    for state in checkpoint.get("lr_schedulers", []):
        state["base_lrs"] = [group["lr"] for group in optimizer.param_groups]


def move_schedule(schedule: LambdaLR, step: int) -> None:
    """Sets a schedule to a step of the training, since its span may have changed."""
    schedule.last_epoch = schedule.last_epoch or step  # 0 if there was no schedule
    for group, base, factor in zip(
        schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(schedule.last_epoch)
    schedule._last_lr = [group["lr"] for group in schedule.optimizer.param_groups]
