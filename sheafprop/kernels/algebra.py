"""Products of rows of a table with rows of features: by coordinates, or in quaternions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sheafprop.kernels.backend import numba_loops


class Algebra(NamedTuple):
    r"""Products of rows ``[..., d]`` that are defined block by block.

    With :math:`\langle a, b \rangle = \mathrm{Re} \sum_j \overline{a_j} b_j`, the product satisfies
    :math:`\langle y, c x \rangle = \langle \bar{c} y, x \rangle = \langle y \bar{x}, c \rangle`.

    Args:
        name (str): What its rows are.
        block (int): Neighbouring columns that belong together.
        multiply (callable): The product :math:`c x`.
        conjugate (callable): :math:`\bar{c}`.
        gather (callable): Gives every column the sum over its block.
        one (callable): Rows of ones of the algebra, like those given.
        planes (callable): A table as the compiled loop takes it.
        loops (callable): The compiled loops for features of real or complex numbers: sums of
            products, and sums of :math:`y \bar{x}` by label.
    """

    name: str
    block: int
    multiply: Callable[[Tensor, Tensor], Tensor]
    conjugate: Callable[[Tensor], Tensor]
    gather: Callable[[Tensor], Tensor]
    one: Callable[[Tensor], Tensor]
    planes: Callable[[Tensor], Tensor]
    loops: Callable[[bool], tuple[Any, Any]]

    def squares(self, c: Tensor) -> Tensor:
        """The squared moduli :math:`\\bar{c} c`, the same in all columns of a block."""
        return self.gather((c * c.conj()).real)


def _diagonal_planes(table: Tensor) -> Tensor:
    table = table.detach().resolve_conj().resolve_neg()
    return torch.stack([table.real, table.imag]) if table.is_complex() else table.contiguous()


def _diagonal_loops(is_complex: bool) -> tuple[Any, Any]:
    loops: Any = numba_loops()
    if is_complex:
        return loops.complex_rows, loops.complex_label_sums
    return loops.real_rows, loops.real_label_sums


#: Every coordinate by itself, real or complex.
DIAGONAL = Algebra(
    name="diagonal",
    block=1,
    multiply=lambda c, x: x * c,
    conjugate=lambda c: c.conj().resolve_conj(),
    gather=lambda x: x,
    one=torch.ones_like,
    planes=_diagonal_planes,
    loops=_diagonal_loops,
)


def _multiply_quaternions(c: Tensor, x: Tensor) -> Tensor:
    a, b, f, g = c.unflatten(-1, (-1, 4)).unbind(-1)
    p, q, r, s = x.unflatten(-1, (-1, 4)).unbind(-1)
    parts = (
        (a * p - b * q) - (f * r + g * s),
        (a * q + b * p) + (f * s - g * r),
        (a * r - b * s) + (f * p + g * q),
        (a * s + b * r) + (g * p - f * q),
    )
    return torch.stack(parts, dim=-1).flatten(-2)


def _conjugate_quaternions(c: Tensor) -> Tensor:
    return c * c.new_tensor([1.0, -1.0, -1.0, -1.0]).repeat(c.shape[-1] // 4)


def _sum_fours(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, 4)).sum(-1).repeat_interleave(4, -1)


def _ones_of_quaternions(like: Tensor) -> Tensor:
    one = like.new_tensor([1.0, 0.0, 0.0, 0.0]).repeat(like.shape[-1] // 4)
    return one.expand_as(like)


def _quaternion_planes(table: Tensor) -> Tensor:
    return table.detach().unflatten(-1, (-1, 4)).permute(2, 0, 1).contiguous()


def _quaternion_loops(is_complex: bool) -> tuple[Any, Any]:
    assert not is_complex
    from sheafprop.kernels import quaternion_loops

    return quaternion_loops.quaternion_rows, quaternion_loops.quaternion_label_sums


#: Four neighbouring columns are a quaternion; the table multiplies from the left.
QUATERNIONS = Algebra(
    name="quaternions",
    block=4,
    multiply=_multiply_quaternions,
    conjugate=_conjugate_quaternions,
    gather=_sum_fours,
    one=_ones_of_quaternions,
    planes=_quaternion_planes,
    loops=_quaternion_loops,
)
