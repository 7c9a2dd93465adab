import pytest
import torch

from sheafprop.pretrained.fact_index import FactIndex

N, R = 9, 3


def random_facts(count, seed):
    g = torch.Generator().manual_seed(seed)
    head, tail = torch.randint(N, (2, count), generator=g)
    return torch.stack([head, torch.randint(R, (count,), generator=g), tail], dim=1)


@pytest.fixture(params=[[0], [40], [30, 4, 9, 0, 1]], ids=["none", "one block", "several"])
def index(request):
    first, *more = [random_facts(count, seed) for seed, count in enumerate(request.param)]
    found = FactIndex(first)
    for facts in more:
        found = found.append(facts)
    return found


def test_answers_are_those_of_a_scan(index):
    facts = index.from_row(0).tolist()
    entity = torch.arange(N).repeat_interleave(R)
    relation = torch.arange(R).repeat(N)
    for side, given, asked in (("tail", 0, 2), ("head", 2, 0)):
        row, found = index.answers(side, entity, relation)
        for i in range(len(entity)):
            key = [int(entity[i]), int(relation[i])]
            expected = [f[asked] for f in facts if [f[given], f[1]] == key]
            assert sorted(found[row == i].tolist()) == sorted(expected)


def test_facts_at_entities_come_in_their_order(index):
    facts = index.from_row(0)
    for entities in ([], [4], [0, 7, 7]):
        want = [f for f in facts.tolist() if f[0] in entities or f[2] in entities]
        assert index.at(torch.tensor(entities, dtype=torch.int64)).tolist() == want


def test_membership(index):
    every = torch.cartesian_prod(torch.arange(N), torch.arange(R), torch.arange(N))
    facts = set(map(tuple, index.from_row(0).tolist()))
    assert index.contain(every).tolist() == [tuple(t) in facts for t in every.tolist()]


def test_what_was_sorted_is_shared():
    index = FactIndex(random_facts(50, 0))
    index.at(torch.tensor([1]))
    grown = index.append(random_facts(3, 1)).append(random_facts(2, 2))
    assert grown.blocks[0] is index.blocks[0]
    assert len(grown) == 55
    assert len(index) == 50
    assert repr(grown) == "FactIndex(55 facts)"
