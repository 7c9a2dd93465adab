from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.query.branch_energy import BranchEnergy, real_rows, squares


@dataclass(frozen=True, eq=False)
class DenseEnergy(BranchEnergy):
    r"""A branch energy with any precision, held by a factor: :math:`P = K^* K`.

    Args:
        factor (Tensor): :math:`K`, ``[U, d, d]``; equal ones are held once.
        inverse (callable): Gives :math:`K^{-1}` of some of them, where they are regular.
        regular (Tensor): Whether :math:`K` is invertible and well conditioned, ``[U]``.
        index (Tensor): Which factor each query has, ``[Q]``.
    """

    factor: Tensor
    inverse: Callable[[Tensor], Tensor]
    regular: Tensor
    index: Tensor

    def select(self, rows: Tensor) -> "DenseEnergy":
        """The energies of some queries."""
        used, index = torch.unique(self.index[rows], return_inverse=True)
        return DenseEnergy(
            self.centre[rows],
            self.constant[rows],
            self.factor[used],
            lambda numbers: self.inverse(used[numbers]),
            self.regular[used],
            index,
        )

    def precision(self) -> Tensor:
        return (self.factor.mH @ self.factor)[self.index]

    def features(self, x: Tensor) -> Tensor:
        columns = x.T.contiguous()
        row, column = _triangle(x)
        products = columns[row].mul_(columns[column])
        return torch.cat([columns, products, torch.ones_like(columns[:1])])

    def coefficients(self, section: int) -> Tensor:
        m = real_rows(self.centre[:, section])
        factor = self.real_factor()
        precision = factor.mT @ factor
        row, column = _triangle(m)
        packed = precision[:, row, column] * torch.where(row == column, 1.0, 2.0)
        pulled = (precision[self.index] @ m.unsqueeze(2)).squeeze(2)
        last = (m * pulled).sum(1) + self.constant[:, section]
        return torch.cat([-2 * pulled, packed[self.index], last[:, None]], dim=1)

    def at(self, row: Tensor, x: Tensor, section: int) -> Tensor:
        gap = x - self.centre[row, section]
        mapped = (self.factor[self.index[row]] @ gap.unsqueeze(2)).squeeze(2)
        return squares(mapped).sum(1) + self.constant[row, section]

    def norms(self) -> Tensor:
        return torch.linalg.matrix_norm(self.factor.mH @ self.factor)[self.index]

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
