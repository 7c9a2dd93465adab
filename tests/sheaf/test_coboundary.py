import torch

from sheafprop.sheaf import (
    DiagonalSheaf,
    IdentitySheaf,
    coboundary,
    coboundary_adjoint,
    edge_energy,
)

EDGES = torch.tensor([[0, 2], [1, 1]]), torch.tensor([0, 1])


def test_one_by_hand():
    x = torch.tensor([[1.0], [2.0], [5.0]])
    sheaf = DiagonalSheaf(torch.tensor([[3.0], [1.0]]), None, torch.tensor([[1.0], [0.0]]))
    assert coboundary(x, *EDGES, sheaf).tolist() == [[-1], [-3]]
    assert edge_energy(x, *EDGES, sheaf).tolist() == [4, 9]
    assert edge_energy(x, *EDGES, sheaf, torch.tensor([2.0, 0.0])).tolist() == [8, 0]
    y = torch.tensor([[1.0], [10.0]])
    assert coboundary_adjoint(y, *EDGES, sheaf, 3).tolist() == [[-3], [11], [-10]]


def test_translations_alone_have_no_energy_where_they_fit():
    b = torch.randn(2, 4, dtype=torch.float64)
    x = torch.stack([torch.zeros(4), b[0], b[0] - b[1]])
    energy = edge_energy(x, *EDGES, IdentitySheaf(b))
    torch.testing.assert_close(energy, torch.zeros_like(energy))
