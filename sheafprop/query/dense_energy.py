from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kge.distance import real_rows
from sheafprop.query.branch_energy import BranchEnergy, squares

_RELATIVE_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class DenseEnergy(BranchEnergy):
    r"""A branch energy with any precision, held as :math:`\|K x - y\|^2 + c`.

    Args:
        factor (Tensor): :math:`K`, ``[U, d, d]``; equal ones are held once.
        pull (Tensor): :math:`y`, ``[Q, s, d]``.
        inverse (callable): Gives :math:`K^{-1}` of some of them, where they are regular.
        regular (Tensor): Whether :math:`K` is invertible and well conditioned, ``[U]``.
        index (Tensor): Which factor each query has, ``[Q]``.
    """

    factor: Tensor
    pull: Tensor
    inverse: Callable[[Tensor], Tensor]
    regular: Tensor
    index: Tensor

    @property
    def centre(self) -> Tensor:
        inverse = torch.linalg.pinv(self.factor, rtol=_RELATIVE_TOLERANCE**0.5)
        return (inverse[self.index] @ self.pull.mT).mT

    def precision(self) -> Tensor:
        return (self.factor.mH @ self.factor)[self.index]

    def features(self, x: Tensor) -> Tensor:
        columns = x.T.contiguous()
        row, column = _triangle(x)
        products = columns[row].mul_(columns[column])
        return torch.cat([products, columns, torch.ones_like(columns[:1])])

    def shared(self) -> tuple[Tensor, Tensor]:
        factor = self.real_factor()
        precision = factor.mT @ factor
        row, column = _triangle(factor)
        return precision[:, row, column] * torch.where(row == column, 1.0, 2.0), self.index

    def coefficients(self, section: int) -> Tensor:
        y = real_rows(self.pull[:, section])
        linear = (y.unsqueeze(1) @ self.real_factor()[self.index]).squeeze(1)
        last = y.square().sum(1) + self.constant[:, section]
        return torch.cat([-2 * linear, last[:, None]], dim=1)

    def at(self, row: Tensor, x: Tensor, section: int) -> Tensor:
        mapped = (self.factor[self.index[row]] @ x.unsqueeze(2)).squeeze(2)
        return squares(mapped - self.pull[row, section]).sum(1) + self.constant[row, section]

    def size(self, section: int, longest: Tensor) -> Tensor:
        norms = torch.linalg.matrix_norm(self.factor.mH @ self.factor)[self.index]
        return norms * longest + squares(self.pull[:, section]).sum(1)

    def real_factor(self) -> Tensor:
        """The factors as real matrices, acting on :func:`real_rows`."""
        if not self.factor.is_complex():
            return self.factor
        re, im = self.factor.real, self.factor.imag
        top = torch.stack([re, -im], dim=-1).flatten(-2)
        bottom = torch.stack([im, re], dim=-1).flatten(-2)
        return torch.stack([top, bottom], dim=-2).flatten(-3, -2)


def _triangle(x: Tensor) -> tuple[Tensor, Tensor]:
    width = x.shape[-1]
    row, column = torch.triu_indices(width, width, device=x.device)
    return row, column
