import functools
from typing import Any

import torch
from torch import Tensor

from sheafprop.kernels.algebra import DIAGONAL, Algebra
from sheafprop.kernels.backend import (
    Backend,
    as_array,
    as_real_rows,
    backend_of,
    entries_ahead,
    is_traced,
    leave_inference_mode,
    scalars,
    triton_loops,
)
from sheafprop.kernels.coupling import (
    Coupling,
    CouplingEntries,
    IdentityCoupling,
    TypedEntries,
    needs_gradient,
)
from sheafprop.kernels.csr_product import MESSAGES, Terms
from sheafprop.kernels.memory import empty
from sheafprop.kernels.rows import add_rows, take_rows
from sheafprop.kernels.threads import run_rows

# Bytes of gathered messages the reference holds at once.
_BLOCK_BYTES = 64 * 2**20


class DiagonalCoupling(Coupling):
    r"""Messages of maps that are rows of a table: :math:`y_v = \sum_e w_e \, c_{r_e} x_{u_e}`.

    ``coefficients`` holds :math:`c_r = \overline{R_t} R_h` for the message into the tail; the
    message into the head uses its conjugate. A compiled loop over the receiving vertices adds
    the messages one by one and never holds them; its adjoint is the same loop, and the gradient
    with respect to the coefficients a second one over the relations.

    Args:
        entries: The messages.
        coefficients (Tensor): :math:`c_r`, ``[R, d]``.
        algebra (Algebra): The product: coordinate by coordinate, or that of quaternions.
    """

    def __init__(
        self,
        entries: CouplingEntries | TypedEntries,
        coefficients: Tensor,
        algebra: Algebra = DIAGONAL,
    ):
        if isinstance(entries, CouplingEntries):
            entries = TypedEntries.from_coupling(entries, coefficients.shape[0])
        self._entries, self._algebra = entries, algebra
        self._table = torch.cat([coefficients, algebra.conjugate(coefficients)])
        self._planes: dict[torch.dtype, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_complex() and self._algebra.block > 1:
            # Such maps are real: real and imaginary parts are sections of their own.
            both = self(torch.cat([x.real, x.imag], dim=1))
            return torch.complex(*both.chunk(2, dim=1))
        x, table = self._promote(x)
        if is_traced(x):
            return reference_messages(x, table, self._entries, self._algebra)
        if needs_gradient(x, table):
            return _Messages.apply(x, table, self._entries, self._algebra)
        return messages(x, table, self._entries, self._algebra)

    def combine(self, x: Tensor, terms: Terms) -> Tensor:
        if _backend(x, self._algebra) == "torch" or needs_gradient(x, self._table, *terms[1:4]):
            return super().combine(x, terms)
        x, _ = self._promote(x)
        planes = self._planes_as(x.dtype)
        return fused_messages(x, planes, self._entries, terms, algebra=self._algebra)

    def combine_rows(self, rows: tuple[int, int], x: Tensor, terms: Terms) -> bool:
        fits = torch.promote_types(x.dtype, self._table.dtype) == x.dtype
        if _backend(x, self._algebra) != "numba" or not fits:
            return False
        planes = self._planes_as(x.dtype)
        fused_messages(x, planes, self._entries, terms, rows, algebra=self._algebra)
        return True

    def _planes_as(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._planes:
            with leave_inference_mode():
                self._planes[dtype] = self._algebra.planes(self._table.to(dtype))
        return self._planes[dtype]

    def _promote(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(x.dtype, self._table.dtype)
        return x.to(dtype), self._table.to(dtype)


class _Messages(torch.autograd.Function):
    r"""Bilinear in the features and the table, and closed under differentiation."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, table: Tensor, entries: TypedEntries, algebra: Algebra
    ) -> Tensor:
        ctx.save_for_backward(x, table)
        ctx.entries, ctx.algebra = entries, algebra
        return messages(x, table, entries, algebra)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, table = ctx.saved_tensors
        to_x = to_table = None
        if ctx.needs_input_grad[0]:
            adjoint, renamed = ctx.entries.adjoint(ctx.algebra.conjugate(table))
            to_x = _Messages.apply(grad, renamed, adjoint, ctx.algebra)
        if ctx.needs_input_grad[1]:
            to_table = _LabelSums.apply(x, grad, ctx.entries, table.shape[0], ctx.algebra)
        return to_x, to_table, None, None


class _LabelSums(torch.autograd.Function):
    r"""The gradient of the table, :math:`T_l = \sum_{e \in l} w_e g_{v_e} \overline{x_{u_e}}`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, g: Tensor, entries: TypedEntries, num_labels: int, algebra: Algebra
    ) -> Tensor:
        ctx.save_for_backward(x, g)
        ctx.entries, ctx.algebra = entries, algebra
        return label_sums(x, g, entries, num_labels, algebra)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x, g = ctx.saved_tensors
        to_x = to_g = None
        if ctx.needs_input_grad[0]:
            adjoint, renamed = ctx.entries.adjoint(ctx.algebra.conjugate(grad))
            to_x = _Messages.apply(g, renamed, adjoint, ctx.algebra)
        if ctx.needs_input_grad[1]:
            to_g = _Messages.apply(x, grad, ctx.entries, ctx.algebra)
        return to_x, to_g, None, None, None


def _backend(x: Tensor, algebra: Algebra) -> Backend:
    """There is no Triton kernel for quaternions, and the compiled loop takes real ones alone."""
    backend = backend_of(x)
    if algebra.block == 1 or (backend == "numba" and not x.is_complex()):
        return backend
    return "torch"


def messages(
    x: Tensor, table: Tensor, entries: TypedEntries, algebra: Algebra = DIAGONAL
) -> Tensor:
    """The sum of messages, without gradients, by whatever runs fastest here."""
    if _backend(x, algebra) == "torch":
        return reference_messages(x, table, entries, algebra)
    return fused_messages(x, algebra.planes(table), entries, algebra=algebra)


def reference_messages(
    x: Tensor, table: Tensor, entries: TypedEntries, algebra: Algebra = DIAGONAL
) -> Tensor:
    """The same in torch's own operations: gathers the messages, block by block."""
    out = x.new_zeros(entries.num_dst, *x.shape[1:])
    dst = entries.dst()
    block = max(1, _BLOCK_BYTES // max(1, x[:1].numel() * x.element_size()))
    for start in range(0, dst.numel(), block):
        part = slice(start, start + block)
        factor = take_rows(table, 0, entries.label[part].long()).unsqueeze(1)
        message = algebra.multiply(factor, take_rows(x, 0, entries.src[part].long()))
        if entries.weight is not None:
            message = message * entries.weight[part].view(-1, 1, 1).to(message.dtype)
        out = add_rows(out, 0, dst[part], message)
    return out


def fused_messages(
    x: Tensor,
    planes: Tensor,
    entries: TypedEntries,
    terms: Terms = MESSAGES,
    some: tuple[int, int] | None = None,
    *,
    algebra: Algebra = DIAGONAL,
) -> Tensor:
    """What :meth:`Coupling.combine` says, by a compiled loop and without gradients; ``some`` are
    the rows of ``out`` to fill, if not all."""
    out = empty((entries.num_dst, *x.shape[1:]), x) if terms.out is None else terms.out
    rows, dtype = as_real_rows(x), x.dtype.to_real()
    if out.numel() == 0 or rows.shape[0] == 0:
        return out.zero_()
    arguments: tuple[Tensor | None, ...] = (
        entries.start,
        entries.src,
        entries.label,
        None if entries.weight is None else entries.weight.to(dtype),
        planes,
        rows,
        *terms.as_rows(x, rows),
    )
    target = as_real_rows(out)
    if backend_of(x) == "triton":
        triton_loops().typed_rows(*arguments, terms.factors, target)  # type: ignore[union-attr]
        return out
    ahead = entries_ahead(rows.shape[1] * rows.element_size())
    run_rows(
        algebra.loops(x.is_complex())[0],
        (*map(as_array, arguments), scalars(dtype, *terms.factors), ahead, target.numpy()),
        entries.start.numpy(),
        rows.shape[1],
        some,
    )
    return out


def label_sums(
    x: Tensor, g: Tensor, entries: TypedEntries, num_labels: int, algebra: Algebra = DIAGONAL
) -> Tensor:
    """Sums of destination times conj(source) over the entries of each label, ``[labels, d]``."""
    backend = _backend(x, algebra)
    out = x.new_zeros(num_labels, x.shape[-1])
    if x.numel() == 0 or g.numel() == 0 or entries.src.numel() == 0:
        return out
    if backend == "torch":
        return _reference_label_sums(x, g, entries, out, algebra)
    pieces = entries.pieces
    rows, rows_g = as_real_rows(x), as_real_rows(g)
    partial = rows.new_empty(pieces.label.numel(), x.shape[-1] * (2 if x.is_complex() else 1))
    weight = None if pieces.weight is None else pieces.weight.to(rows.dtype)
    arguments = (pieces.start, pieces.dst, pieces.src, weight, rows, rows_g)
    if backend == "triton":
        triton_loops().label_sums(*arguments, x.is_complex(), partial)  # type: ignore[union-attr]
    else:
        loop = algebra.loops(x.is_complex())[1]
        ahead = entries_ahead(2 * rows.shape[1] * rows.element_size())
        run_rows(
            loop,
            (*map(as_array, arguments), ahead, partial.numpy()),
            pieces.start.numpy(),
            rows.shape[1],
        )
    if x.is_complex():
        partial = torch.view_as_complex(partial.view(partial.shape[0], -1, 2))
    return add_rows(out, 0, pieces.label, partial)


def _reference_label_sums(
    x: Tensor, g: Tensor, entries: TypedEntries, out: Tensor, algebra: Algebra
) -> Tensor:
    dst = entries.dst()
    block = max(1, _BLOCK_BYTES // max(1, x[:1].numel() * x.element_size()))
    for start in range(0, dst.numel(), block):
        part = slice(start, start + block)
        source = algebra.conjugate(x[entries.src[part].long()])
        product = algebra.multiply(g[dst[part]], source).sum(1)
        if entries.weight is not None:
            product = product * entries.weight[part].unsqueeze(1).to(product.dtype)
        out = add_rows(out, 0, entries.label[part].long(), product)
    return out


# Devices that the tests, or a benchmark, have run on.
_TRIED = ("cpu", "cuda")


def check_device(device: torch.device) -> None:
    """Compares small sums of messages on a device with their values, at its first use.

    Args:
        device (torch.device): Where a plan is about to be made.

    Raises:
        RuntimeError: If a sum differs.
    """
    if device.type not in (*_TRIED, "meta"):
        _check(device.type)


@functools.cache
def _check(device_type: str) -> None:
    with torch.inference_mode(False), torch.no_grad():
        _compare_sums(torch.device(device_type))


def _compare_sums(device: torch.device) -> None:
    """Sums of small integers, which every number type and every order of adding gives exactly."""

    def on_device(values: list, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device)

    entries = CouplingEntries(
        dst=on_device([2, 0, 2, 0, 2, 2], torch.long),
        src=on_device([0, 1, 0, 2, 1, 0], torch.long),
        label=on_device([0, 1, 1, 0, 1, 0], torch.long),
        weight=on_device([1, 2, 1, 3, 1, 2], torch.float32),
        num_dst=4,
        num_src=3,
    )
    real = on_device([[[1, 2]], [[3, -1]], [[0, 5]]], torch.float32)
    pairs = on_device([[[1, 0]], [[0, 2]], [[3, 1]]], torch.float32)
    x = torch.view_as_complex(torch.stack([real, pairs], -1).contiguous())
    table = torch.view_as_complex(on_device([[[1, 2], [0, 1]]], torch.float32))
    cases: list[tuple[Coupling, Tensor, list]] = [
        (IdentityCoupling(entries), real, [[6, 13], [0, 0], [7, 7], [0, 0]]),
        (
            DiagonalCoupling(entries, table),
            x,
            [[-12 - 3j, 1 + 17j], [0, 0], [3 + 2j, 2 + 5j], [0, 0]],
        ),
    ]
    for coupling, features, expected in cases:
        found = coupling(features).cpu().squeeze(1)
        if not torch.equal(found, torch.tensor(expected).to(found.dtype)):
            raise RuntimeError(
                f"torch {torch.__version__} adds rows wrongly on the device '{device}' "
                f"(got {found.tolist()}, expected {expected}): move the tensors to the CPU, or "
                "take another version of torch"
            )
