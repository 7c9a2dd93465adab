import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.rows import real_rows
from sheafprop.kernels.threads import run_rows


@dataclass(frozen=True, eq=False)
class BranchEnergy(ABC):
    r"""What a branch of every query asks of the vertex it ends at, with all before eliminated:

    .. math::
        E(x) = (x - m)^* P (x - m) + c

    It is held in double precision. Subclasses hold the precision :math:`P` by the kind of the maps.
    An energy is linear in the *features* of a vertex, which hold products of its coordinates; so
    the energies of all queries at all vertices are one matrix product.

    Args:
        constant (Tensor): :math:`c \ge 0`, ``[Q, s]``.
    """

    #: The numbers that a query holds are the width of the vectors to this power.
    degree: ClassVar[int] = 1

    constant: Tensor

    @property
    @abstractmethod
    def centre(self) -> Tensor:
        """:math:`m`, ``[Q, s, d]``; nearest to zero where the precision is singular."""

    @abstractmethod
    def precision(self) -> Tensor:
        """:math:`P` as matrices ``[Q, d, d]``."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The features ``[F, C]`` of one section of vertices, real rows ``[C, m]``."""

    def shared(self) -> tuple[Tensor, Tensor] | None:
        """Coefficients ``[U, F']`` of the first features that queries share, and whose ``[Q]``."""
        return None

    @abstractmethod
    def coefficients(self, section: int) -> Tensor:
        """The coefficients ``[Q, F - F']`` of the other features."""

    @abstractmethod
    def at(self, row: Tensor, x: Tensor, section: int) -> Tensor:
        """Energies ``[n]`` of queries ``row`` at vertices ``x`` ``[n, d]``, from differences."""

    @abstractmethod
    def size(self, section: int, longest: Tensor) -> Tensor:
        r"""What cancels in the product, ``[Q]``, where :math:`\|x\|^2` is ``longest`` at most."""


def squares(x: Tensor) -> Tensor:
    """Squared moduli, without the root that ``abs`` takes of complex numbers."""
    return x.real.square() + x.imag.square() if x.is_complex() else x.square()


def double(x: Tensor) -> Tensor:
    """The same numbers in double precision."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


# Scores in a tile (8 MiB of float32), and numbers in the features of all candidates that are kept.
_TILE_SCORES = 2**21
_BLOCK_FEATURES = 2**24


class CandidateScores:
    r"""The scores of candidates by the energies of queries, :math:`- \sum_i a_i \sqrt{E_i}`.

    The energies of a section are one matrix product, see :class:`BranchEnergy`; those whose digits
    cancel in it are computed again from differences.

    Args:
        x (Tensor): The vectors of all entities, ``[N, s, d]``.
        section_weight (sequence of float): :math:`a_i`, one for each section.
    """

    def __init__(self, x: Tensor, section_weight: Sequence[float]) -> None:
        self.x, self.section_weight = x, section_weight
        # The largest squared length of a vector in each section.
        self._longest = torch.linalg.vector_norm(x, dim=2).square().double().amax(0)
        # The last candidates, and features by section, whether of all entities, and their number.
        self._candidates, self._chosen = torch.empty(0, dtype=torch.long, device=x.device), x[:0]
        self._kept: dict[tuple[int, bool, int], Tensor] = {}

    def __call__(self, energy: BranchEnergy, candidates: Tensor | None) -> Tensor:
        """Scores ``[Q, C]`` of the entities ``candidates``, or of all of them."""
        x = self._select(candidates)
        total = x.real.new_empty(energy.constant.shape[0], x.shape[0])
        coefficients, limits = [], []
        for section in range(x.shape[1]):
            coefficients.append(energy.coefficients(section).to(total.dtype))
            size = energy.size(section, self._longest[section])
            limits.append((math.sqrt(torch.finfo(total.dtype).eps) * size).to(total.dtype))
        shared = energy.shared()
        own, index = (total[:0, :0], None) if shared is None else shared
        own, first = own.to(total.dtype), own.shape[1]
        # All sections of a tile come one after the other, while it is in the cache.
        step = max(1, _TILE_SCORES // max(1, total.shape[0]))
        for start in range(0, total.shape[1], step):
            columns = slice(start, min(start + step, total.shape[1]))
            for section, weight in enumerate(self.section_weight):
                rows = x[:, section]
                width = first + coefficients[section].shape[1]
                key = (section, candidates is None, width)
                features = self._features(energy, rows, key, columns)
                energies = coefficients[section] @ features[first:]
                table = energies[:0] if index is None else own @ features[:first]
                limit, fresh = limits[section], section == 0
                near = _finish(energies, table, index, limit, weight, total, start, fresh)
                if near.numel():
                    exact = energies[near]
                    self._refine(exact, near, limit[near], energy, section, rows[columns])
                    roots = exact.sqrt_().mul_(-weight)
                    total[near, columns] = roots if fresh else roots.add_(total[near, columns])
        return total

    def _refine(
        self,
        energies: Tensor,
        rows: Tensor,
        limit: Tensor,
        energy: BranchEnergy,
        section: int,
        x: Tensor,
    ) -> None:
        """Computes again, from differences, the energies whose digits cancelled in a product.

        Those that rounding made negative are among them.
        """
        row, column = (energies <= limit.unsqueeze(1)).nonzero(as_tuple=True)
        step = max(1, _BLOCK_FEATURES // x.shape[1] ** energy.degree)
        for i, j in zip(row.split(step), column.split(step), strict=True):
            energies[i, j] = energy.at(rows[i], double(x[j]), section).to(energies.dtype)

    def _select(self, candidates: Tensor | None) -> Tensor:
        if candidates is None:
            return self.x
        if not torch.equal(candidates, self._candidates):
            self._candidates, self._kept = candidates.clone(), {}
            self._chosen = self.x[candidates]
        return self._chosen

    def _features(
        self, energy: BranchEnergy, x: Tensor, key: tuple[int, bool, int], columns: slice
    ) -> Tensor:
        """The features of some vectors ``x``; those of all are kept where they fit a block.

        :meth:`_select` has forgotten those of other candidates.
        """
        if key not in self._kept:
            if energy.degree > 1 and key[-1] * len(x) > _BLOCK_FEATURES:
                return energy.features(real_rows(x)[columns])
            self._kept[key] = energy.features(real_rows(x))
        return self._kept[key][:, columns]


def _finish(
    energies: Tensor,
    table: Tensor,
    index: Tensor | None,
    limit: Tensor,
    weight: float,
    total: Tensor,
    start: int,
    fresh: bool,
) -> Tensor:
    """Adds what queries share, and subtracts the roots from the columns of ``total`` from ``start``
    on, or from zero where ``fresh``; returns the rows left alone for small energies."""
    if energies.numel() == 0:
        return torch.empty(0, dtype=torch.long, device=energies.device)
    if backend_of(energies) != "numba":
        if index is not None:
            energies += table[index]
        small = energies.amin(1) <= limit
        roots = torch.where(small.unsqueeze(1), 0, energies).sqrt_().mul_(-weight)
        out = total[:, start : start + energies.shape[1]]
        out.copy_(roots if fresh else roots.add_(out))
        return small.nonzero().flatten()
    from sheafprop.query.loops import finish_rows

    near = np.zeros(energies.shape[0], dtype=np.bool_)
    which = np.zeros(0, dtype=np.int64) if index is None else index.numpy()
    values = energies.numpy()
    shared = (table.numpy(), which)
    more = (limit.numpy(), values.dtype.type(weight), near, total.numpy(), start, fresh)
    run_rows(
        finish_rows, (values, *shared, *more), np.arange(values.shape[0] + 1) * values.shape[1], 1
    )
    return torch.from_numpy(near).nonzero().flatten()
