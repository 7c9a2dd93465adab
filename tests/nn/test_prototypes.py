import torch

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
