"""Random lists of messages, and their sums written out entry by entry."""

import torch
from torch import Tensor

from sheafprop.kernels.coupling import CouplingEntries

RELATIONS, WIDTH = 5, 6


def make_entries(
    seed: int = 0, *, weighted: bool = True, symmetric: bool = False, num_edges: int = 60
) -> CouplingEntries:
    """Parallel edges, repeated edges, rows without entries; free by free or rectangular."""
    g = torch.Generator().manual_seed(seed)
    num_dst, num_src = (11, 11) if symmetric else (11, 8)
    # The last destination receives nothing.
    dst = torch.randint(num_dst - 1, (num_edges,), generator=g)
    src = torch.randint(min(num_src, num_dst - 1), (num_edges,), generator=g)
    relation = torch.randint(RELATIONS, (num_edges,), generator=g)
    label = relation + RELATIONS * torch.randint(2, (num_edges,), generator=g)
    dst[1], src[1], label[1] = dst[0], src[0], label[0]
    dst[2], src[2] = dst[0], src[0]
    weight = torch.ones(num_edges, dtype=torch.float64)
    if weighted:
        weight = torch.rand(num_edges, generator=g, dtype=torch.float64) + 0.1
        weight[3] = 0
    if symmetric:
        dst, src = torch.cat([dst, src]), torch.cat([src, dst])
        label = torch.cat([label, (label + RELATIONS) % (2 * RELATIONS)])
        weight = weight.repeat(2)
    return CouplingEntries(dst, src, label, weight, num_dst, num_src, symmetric)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def written_out(entries: CouplingEntries, matrices: Tensor, x: Tensor) -> Tensor:
    """``matrices[relation, side]`` ``[R, 2, d, d]`` applied entry by entry, side 0 into tails."""
    out = torch.zeros(entries.num_dst, *x.shape[1:], dtype=x.dtype)
    for e in range(entries.dst.numel()):
        side, relation = divmod(int(entries.label[e]), RELATIONS)
        matrix = matrices[relation, side].to(x.dtype)
        weight = entries.weight[e].to(x.dtype)
        out[entries.dst[e]] += weight * (x[entries.src[e]] @ matrix.T)
    return out
