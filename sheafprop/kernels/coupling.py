"""The off-diagonal part of a sheaf Laplacian as a list of directed, typed entries."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class CouplingEntries:
    r"""One entry per message: into vertex ``dst`` from vertex ``src`` along relation ``relation``.

    ``backward`` is False for the message into the tail, :math:`w R_t^* R_h x_h`, and True for the
    message into the head, :math:`w R_h^* R_t x_t`. Destinations and sources are numbered
    separately, so that a block of the matrix (free by free, free by boundary) is a list of its own.
    """

    dst: Tensor
    src: Tensor
    relation: Tensor
    backward: Tensor
    weight: Tensor
    num_dst: int
    num_src: int
