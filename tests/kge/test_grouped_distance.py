import torch

from sheafprop.kge.distance import pairwise_distance
from sheafprop.kge.grouped_distance import grouped_distance


def distance(queries, candidates):
    return pairwise_distance(queries, candidates, p=2.0, squared=True, block=1)


def mapping(rows, weight):
    return rows @ weight.mT


def test_distances_and_gradients_are_those_of_each_group():
    g = torch.Generator().manual_seed(0)
    queries, rows, maps = (
        torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 2, 3), (7, 2, 4), (2, 3, 4))
    )
    groups = torch.tensor([0, 3]), torch.tensor([1, 2, 4])
    out = grouped_distance(distance, mapping, groups, queries, rows, maps)
    image = torch.einsum("gkd,csd->gcsk", maps, rows)[torch.tensor([0, 1, 1, 0, 1])]
    expected = (image - queries.unsqueeze(1)).square().sum((2, 3))
    torch.testing.assert_close(out, expected)
    inputs = queries, rows, maps
    ours, theirs = (torch.autograd.grad(y.sin().sum(), inputs) for y in (out, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    only = grouped_distance(distance, mapping, groups, queries, rows.detach(), maps)
    (grad,) = torch.autograd.grad(only.sin().sum(), maps)
    torch.testing.assert_close(grad, ours[2])
