"""New entities that meet known ones only, few facts of dense maps: no plan is needed for those."""

import torch
from torch import Tensor

from sheafprop.service.free_system import FreeSystem
from sheafprop.sheaf import DenseSheaf

# Beyond this many numbers in the squared maps of all facts, sharing the work of a map pays.
_MOST_NUMBERS = 2**20
# Least and greatest pivot of a block that is treated as regular without a closer look.
_REGULAR = 1e-5


def solve_lone_blocks(system: FreeSystem, sheaf: DenseSheaf) -> Tensor | None:
    r"""The minimum of the energy where no fact connects two free entities.

    .. math::
        x_u = \left( \sum_e R_{u,e}^* R_{u,e} \right)^{-1}
        \sum_e R_{u,e}^* \left( R_{v,e} x_v \pm b_e \right)

    over the facts :math:`e` of :math:`u`, each with a known :math:`v`; :math:`b_e` counts as it is
    where :math:`u` is the tail.

    Returns:
        Vectors of the free entities ``[n, s, d]`` in double precision; None where a plan does
        better, for many facts, or where a block is close to singular.
    """
    size = sheaf.head.shape[2]
    if system.edge_type.numel() * size**2 > _MOST_NUMBERS:
        return None
    dtype = torch.promote_types(sheaf.head.dtype, torch.float64)
    free = ~system.boundary_mask
    into_tail = system.boundary_mask[system.edge_index[0]]
    known, own = torch.where(into_tail, system.edge_index, system.edge_index.flip(0))
    own = (torch.cumsum(free, 0) - 1)[own]
    tail = near = far = sheaf.tail.detach()[system.edge_type]
    if sheaf.head is not sheaf.tail:
        head, side = sheaf.head.detach()[system.edge_type], into_tail.view(-1, 1, 1)
        near, far = torch.where(side, tail, head), torch.where(side, head, tail)
    near, far = near.to(dtype), far.to(dtype)
    target = system.x[known].to(dtype) @ far.mT
    if sheaf.translation is not None:
        shift = sheaf.translation.detach()[system.edge_type].to(dtype)
        target = target + torch.where(into_tail.unsqueeze(1), shift, -shift).unsqueeze(1)
    num_free = int(free.sum())
    blocks = target.new_zeros(num_free, size, size).index_add_(0, own, near.mH @ near)
    constant = target.new_zeros(num_free, target.shape[1], size)
    constant.index_add_(0, own, target @ near.conj())
    factor, failed = torch.linalg.cholesky_ex(blocks)
    pivots = factor.diagonal(dim1=1, dim2=2).real
    if bool(failed.any() | (pivots.amin(1) <= _REGULAR * pivots.amax(1)).any()):
        return None
    return torch.cholesky_solve(constant.mT, factor).mT
