"""Logical queries one at a time, as one would write them down."""

import torch
from torch import Tensor

from sheafprop.sheaf import DenseSheaf


def schur_scores(sheaf: DenseSheaf, x: Tensor, query: tuple[int, int, int]) -> Tensor:
    """Scores ``[N]`` of all entities for one 2p query without translations.

    The Laplacian of the query's graph, its Schur complement on source and target, and the quadratic
    form of that for every candidate.

    Args:
        sheaf (DenseSheaf): The maps.
        x (Tensor): Vectors ``[N, d]``.
        query (tuple of int): Entity and two relations; from the number of relations on inverse.
    """
    entity, *relations = query
    k, d = sheaf.head.shape[1:]
    coboundary = x.new_zeros(2 * k, 3 * d)
    for edge, relation in enumerate(relations):
        inverse, r = divmod(relation, sheaf.num_relations)
        source, target = (sheaf.tail, sheaf.head) if inverse else (sheaf.head, sheaf.tail)
        rows = slice(edge * k, edge * k + k)
        coboundary[rows, edge * d : edge * d + d] = -source[r]
        coboundary[rows, edge * d + d : edge * d + 2 * d] = target[r]
    laplacian = coboundary.T @ coboundary
    ends = torch.cat([torch.arange(d), torch.arange(2 * d, 3 * d)])
    inner = torch.arange(d, 2 * d)
    coupling = laplacian[inner][:, ends]
    reduced = laplacian[ends][:, ends] - coupling.T @ torch.linalg.solve(
        laplacian[inner][:, inner], coupling
    )
    both = torch.cat([x[entity].expand(x.shape[0], -1), x], dim=1)
    return -((both @ reduced) * both).sum(1).clamp(min=0).sqrt()
