import torch

from sheafprop.kernels.rows import add_rows
from sheafprop.nn import RelationPrototypes


def test_means_of_both_sides():
    # Relation 0 from {0, 1} to {2}; relation 1 never occurs.
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    edge_index = torch.tensor([[0, 1], [2, 2]])
    prototypes = RelationPrototypes.from_triples(x, edge_index, torch.tensor([0, 0]), 2)
    assert torch.equal(prototypes.mean, torch.tensor([[0, 8.0], [0, 0], [2.0, 0.0], [0, 0]]))
    assert prototypes.count.tolist() == [2, 0, 2, 0]


def test_nodes_of_relations_without_prototype_have_none():
    mean, count = torch.tensor([[4.0], [0], [2], [0]]), torch.tensor([1, 0, 1, 0])
    prototypes = RelationPrototypes(mean, count)
    edge_index, edge_type = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0, 1, 1])
    mean, found = prototypes.start(edge_index, edge_type, 5)
    # Node 0 is a head and node 1 a tail of relation 0.
    assert found.tolist() == [True, True, False, False, False]
    assert mean.flatten().tolist() == [2, 4, 0, 0, 0]
    weight = torch.tensor([0.0, 1.0, 1.0])
    assert not prototypes.start(edge_index, edge_type, 5, weight)[1].any()


def test_half_sums_do_not_lose_what_they_add():
    # In half precision 2048 + 1 is 2048.
    prototypes = RelationPrototypes(torch.full((2, 1), 3.0).half(), torch.ones(2).long())
    edge_index = torch.stack([torch.arange(1, 5001), torch.zeros(5000, dtype=torch.long)])
    mean, found = prototypes.start(edge_index, torch.zeros(5000, dtype=torch.long), 5001)
    assert found.all()
    assert torch.equal(mean, torch.full((5001, 1), 3.0))


def test_triples_may_be_summed_in_parts(monkeypatch):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, dtype=torch.complex128, generator=g)
    edge_index = torch.randint(9, (2, 50), generator=g)
    edge_type = torch.randint(3, (50,), generator=g)
    whole = RelationPrototypes.from_triples(x, edge_index, edge_type, 5)
    most = 0

    def watch(out, dim, index, rows):
        nonlocal most
        most = max(most, len(rows))
        return add_rows(out, dim, index, rows)

    monkeypatch.setattr("sheafprop.nn.prototypes._CHUNK_NUMBERS", 4 * 7)
    monkeypatch.setattr("sheafprop.nn.prototypes.add_rows", watch)
    parts = RelationPrototypes.from_triples(x, edge_index, edge_type, 5)
    assert most == 7
    torch.testing.assert_close(parts.mean, whole.mean, rtol=0, atol=1e-13)
    assert torch.equal(parts.count, whole.count)
    none = RelationPrototypes.from_triples(x, edge_index[:, :0], edge_type[:0], 5)
    assert not none.mean.any()
