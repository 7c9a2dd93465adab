"""The off-diagonal part of a sheaf Laplacian: its entries, and what a step does with it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.kernels.backend import backend_of
from sheafprop.kernels.csr_product import CSRProduct


@dataclass(frozen=True)
class CouplingEntries:
    r"""One entry per message: into vertex ``dst`` from vertex ``src``.

    ``label`` is the relation :math:`r` for the message into the tail, :math:`w R_t^* R_h x_h`, and
    :math:`R + r` for the message into the head, :math:`w R_h^* R_t x_t`. Destinations and sources
    are numbered separately, so that a block of the matrix (free by free, free by boundary) is a
    list of its own. ``symmetric`` says that every message comes with its reverse.
    """

    dst: Tensor
    src: Tensor
    label: Tensor
    weight: Tensor
    num_dst: int
    num_src: int
    symmetric: bool = False


class Coupling(ABC):
    """The sum of messages :math:`A x` as a function of the source features ``[n, s, d]``."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        r"""Computes :math:`A x`."""

    def combine(
        self,
        x: Tensor,
        factors: tuple[float, float, float],
        own: Tensor | None = None,
        gain: Tensor | None = None,
        constant: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        r"""Computes :math:`(f_0 + f_1 \, o) \, x + f_2 \, g \, (A x + c)` in one pass if it can.

        A step, the Laplacian and the gradient all have this form. Sources and destinations must be
        the same vertices.

        Args:
            x (Tensor): Features ``[n, s, d]``.
            factors (tuple[float, float, float]): :math:`f`.
            own (Tensor, optional): Real :math:`o`, ``[n, 1]`` or ``[n, d]``; None for ones.
            gain (Tensor, optional): Real :math:`g`, likewise.
            constant (Tensor, optional): :math:`c`, ``[n, s, d]`` or ``[n, 1, d]``; None for zero.
            out (Tensor, optional): Where to put the result, if nothing needs gradients.
        """
        received = self(x)
        if constant is not None:
            received = received + constant
        if gain is not None:
            received = received * gain.unsqueeze(1)
        kept = factors[0] * x
        if factors[1] != 0:
            kept = kept + factors[1] * (x if own is None else own.unsqueeze(1) * x)
        return kept + factors[2] * received

    def combine_rows(
        self,
        rows: tuple[int, int],
        x: Tensor,
        factors: tuple[float, float, float],
        own: Tensor | None,
        gain: Tensor | None,
        constant: Tensor | None,
        out: Tensor,
    ) -> bool:
        """Computes some rows of :meth:`combine`, from the first to that behind the last.

        The destinations are the first of the sources, of which there may be more.

        Returns:
            bool: Whether this is done; False where no loop takes some rows alone.
        """
        return False


class EmptyCoupling(Coupling):
    """No messages at all.

    Args:
        num_dst (int): Number of destinations.
    """

    def __init__(self, num_dst: int):
        self._num_dst = num_dst

    def __call__(self, x: Tensor) -> Tensor:
        return x.new_zeros(self._num_dst, *x.shape[1:])


class IdentityCoupling(Coupling):
    """Messages of identity maps: one sparse product, parallel triples merged into one entry.

    ``entries`` may be that product.
    """

    def __init__(self, entries: CouplingEntries | CSRProduct):
        if isinstance(entries, CSRProduct):
            self._product = entries
            return
        self._product = CSRProduct(
            entries.dst,
            entries.src,
            entries.weight,
            entries.num_dst,
            entries.num_src,
            symmetric=entries.symmetric,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x)

    def combine(
        self,
        x: Tensor,
        factors: tuple[float, float, float],
        own: Tensor | None = None,
        gain: Tensor | None = None,
        constant: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        if backend_of(x) == "torch" or needs_gradient(x, own, gain, constant):
            return super().combine(x, factors, own, gain, constant)
        return self._product.combine(x, factors, own, gain, constant, out)

    def combine_rows(
        self,
        rows: tuple[int, int],
        x: Tensor,
        factors: tuple[float, float, float],
        own: Tensor | None,
        gain: Tensor | None,
        constant: Tensor | None,
        out: Tensor,
    ) -> bool:
        if backend_of(x) != "numba":
            return False
        self._product.combine(x, factors, own, gain, constant, out, rows)
        return True


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd records what happens to any of these."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
