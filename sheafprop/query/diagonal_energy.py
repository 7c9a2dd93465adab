from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kge.distance import real_rows
from sheafprop.query.branch_energy import BranchEnergy, squares


@dataclass(frozen=True, eq=False)
class DiagonalEnergy(BranchEnergy):
    """A branch energy whose precision is diagonal, or a multiple of the identity.

    Args:
        middle (Tensor): The centre, ``[Q, s, d]``.
        entries (Tensor): The diagonal, real ``[Q, d]``; ``[Q, 1]`` for multiples of the identity.
    """

    middle: Tensor
    entries: Tensor

    @property
    def centre(self) -> Tensor:
        return self.middle

    def precision(self) -> Tensor:
        diagonal = self.entries.expand(-1, self.middle.shape[-1])
        return torch.diag_embed(diagonal).to(self.middle.dtype)

    def features(self, x: Tensor) -> Tensor:
        lengths = x.square()
        if self.entries.shape[1] == 1:
            lengths = lengths.sum(1, keepdim=True)
        elif self.middle.is_complex():
            lengths = lengths.unflatten(1, (-1, 2)).sum(2)
        return torch.cat([x, lengths, torch.ones_like(x[:, :1])], dim=1).T

    def coefficients(self, section: int) -> Tensor:
        m = self.middle[:, section]
        last = (self.entries * squares(m)).sum(1) + self.constant[:, section]
        return torch.cat([real_rows(-2 * self.entries * m), self.entries, last[:, None]], dim=1)

    def at(self, row: Tensor, x: Tensor, section: int) -> Tensor:
        gap = squares(x - self.middle[row, section])
        return (self.entries[row] * gap).sum(1) + self.constant[row, section]

    def size(self, section: int, longest: Tensor) -> Tensor:
        return self.entries.amax(1) * (longest + squares(self.middle[:, section]).sum(1))
