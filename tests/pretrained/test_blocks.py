import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.errors import DataError
from sheafprop.pretrained.blocks import EntityIndex, FactIndex, RowBlocks

N, R = 9, 3


def random_facts(count, seed):
    g = torch.Generator().manual_seed(seed)
    head, tail = torch.randint(N, (2, count), generator=g)
    return torch.stack([head, torch.randint(R, (count,), generator=g), tail], dim=1)


@pytest.fixture(params=[[0], [40], [30, 4, 9, 0, 1]], ids=["none", "one block", "several"])
def index(request):
    first, *more = [random_facts(count, seed) for seed, count in enumerate(request.param)]
    found = FactIndex(first, R)
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
            assert set(found[row == i].tolist()) == set(expected)


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
    index = FactIndex(random_facts(50, 0), R)
    index.at(torch.tensor([1]))
    grown = index.append(random_facts(3, 1)).append(random_facts(2, 2))
    assert grown._blocks[0] is index._blocks[0]
    assert len(grown) == 55
    assert len(index) == 50
    assert repr(grown) == "FactIndex(55 facts)"


def grown_index(sizes):
    """An index of e0, e1, ... that came in blocks, with its labels and origins."""
    labels = [f"e{i}" for i in range(sum(sizes))]
    origins = [f"o{i % 3}" for i in range(sum(sizes))]
    index = EntityIndex(Vocabulary(labels[: sizes[0]], kind="entities"), origins[: sizes[0]])
    start = sizes[0]
    for size in sizes[1:]:
        index = index.add(labels[start : start + size], origins[start : start + size])
        start += size
    return index, labels, origins


SIZES = [[3], [5, 1, 1, 4, 0, 2, 9], [2, 8, 1]]


@pytest.mark.parametrize("sizes", SIZES)
def test_entities_are_numbered_in_the_order_they_came(sizes):
    index, labels, origins = grown_index(sizes)
    every = torch.arange(len(labels))
    assert len(index) == len(labels)
    assert index.vocabulary().labels == tuple(labels)
    assert index.origins() == tuple(origins)
    assert torch.equal(index.ids(labels), every)
    assert index.labels_of(every.flip(0)) == labels[::-1]
    assert index.origins_of(every) == origins
    assert index.lookup(["nobody", labels[-1]]).tolist() == [-1, len(labels) - 1]
    assert labels[-1] in index
    assert "nobody" not in index
    with pytest.raises(DataError, match="did you mean 'e0'"):
        index.ids(["E0"])


def test_other_origins_leave_the_old_index_as_it_was():
    index, labels, origins = grown_index([4, 2, 1])
    changed = index.with_origins({4: "x", 6: "y"})
    assert changed.origins() == (*origins[:4], "x", origins[5], "y")
    assert changed.vocabulary().labels == tuple(labels)
    assert index.origins() == tuple(origins)


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_in_blocks_are_those_of_one_tensor(sizes):
    x = torch.randn(sum(sizes), 1, 2, generator=torch.Generator().manual_seed(0))
    first, *more = x.split(sizes)
    blocks = RowBlocks([first])
    for rows in more:
        blocks = blocks.append(rows)
    assert len(blocks) == len(x)
    assert blocks.blocks[0].data_ptr() == first.data_ptr()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert torch.equal(blocks.select(order), x[order])
    assert blocks.select(order[:0]).shape == (0, 1, 2)
    for start in range(len(x)):
        assert torch.equal(blocks.from_row(start), x[start:])


def test_rows_of_one_section_are_stretched_where_others_have_several():
    one, two = torch.zeros(3, 1, 2), torch.ones(4, 2, 2)
    blocks = RowBlocks([one]).append(one[:1]).append(two)
    assert [block.shape[1] for block in blocks.blocks] == [1, 2]
    assert torch.equal(blocks.from_row(3), torch.cat([one[:1].expand(-1, 2, -1), two]))
