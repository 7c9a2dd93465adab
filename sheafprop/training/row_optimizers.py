"""Optimizers of a table of which a batch touches few rows, and of other parameters beside it."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class RowwiseAdagrad(torch.optim.Optimizer):
    r"""Adagrad with one accumulator for each row of a table.

    It is that of PyTorch-BigGraph (`arXiv:1903.12287 <https://arxiv.org/abs/1903.12287>`_) and of
    fbgemm: for a row :math:`\mathbf{x}_i` of width :math:`m` with gradient :math:`\mathbf{g}_i`

    .. math::
        s_i \leftarrow s_i + \frac{1}{m} \| \mathbf{g}_i \|^2, \qquad
        \mathbf{x}_i \leftarrow \mathbf{x}_i - \eta \, \frac{\mathbf{g}_i}{\sqrt{s_i} + \epsilon}

    A row without gradient keeps its values and its accumulator, so a sparse gradient, of which only
    its rows are read and written, gives what the dense one gives.

    Args:
        params (iterable): Parameters, or groups of them. Those of a group with
            :obj:`rowwise=True` have one accumulator a row, the others one a number, as in
            :class:`torch.optim.Adagrad`.
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
                        raise RuntimeError("weight decay does not go with sparse gradients")
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
    """Adam whose sparse gradients change the rows they have, and no others.

    Rows of a sparse gradient, and their moments, change as in :class:`torch.optim.Adam`; all other
    rows and moments stay, as in :class:`torch.optim.SparseAdam`. A row that is in every batch is
    thus trained as by the dense optimizer, while one that is in few batches is not moved between
    them by the gradient that it once had. Both have one step count, of all steps.

    Args:
        params (iterable): Parameters, or groups of them.
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
            raise RuntimeError("weight decay does not go with sparse gradients")
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
    """The rows of a sparse gradient, each once, and their values."""
    grad = grad.coalesce()
    return grad.indices()[0], grad.values()


def _squares(grad: Tensor, rowwise: bool) -> Tensor:
    return grad.square().flatten(1).mean(1) if rowwise else grad.square()


def _along(scale: Tensor, grad: Tensor) -> Tensor:
    """What rows or single numbers are divided by, in as many dimensions as their gradient has."""
    return scale.view(*scale.shape, *[1] * (grad.dim() - scale.dim()))
