from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


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
