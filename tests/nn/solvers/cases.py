"""Linear systems of some size."""

import torch

from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf, PropagationPlan

RELATIONS, WIDTH = 5, 3


def random_graph(shape, n, seed=0):
    g = torch.Generator().manual_seed(seed)
    if shape == "tree":
        parent = (torch.rand(n - 1, generator=g) * torch.arange(1, n)).long()
        edge_index = torch.stack([parent, torch.arange(1, n)])
    elif shape == "path":
        path = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
        edge_index = torch.cat([path, torch.randint(0, n, (2, n // 50), generator=g)], dim=1)
    else:
        edge_index = (n * torch.rand(2, 4 * n, generator=g) ** 2.5).long()
    edge_type = torch.randint(0, RELATIONS, (edge_index.shape[1],), generator=g)
    return edge_index, edge_type


def random_sheaf(kind, seed=0):
    g = torch.Generator().manual_seed(seed)

    def real(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    if kind == "identity":
        return IdentitySheaf(real(RELATIONS, WIDTH))
    if kind == "unitary":
        return DiagonalSheaf(torch.polar(torch.ones(RELATIONS, WIDTH).double(), real(5, 3)))
    return DenseSheaf(real(RELATIONS, WIDTH, WIDTH), real(RELATIONS, WIDTH, WIDTH))


def system_of(kind, shape, n, known, seed=0):
    edge_index, edge_type = random_graph(shape, n, seed)
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(n, generator=g) < known
    sheaf = random_sheaf(kind, seed)
    plan = PropagationPlan(edge_index, edge_type, sheaf, n, boundary_mask=mask, dtype=sheaf.dtype)
    x = torch.randn(n, 1, WIDTH, generator=g, dtype=sheaf.dtype)
    return plan, plan.gradient(x[plan.free_index], plan.constant(x))
