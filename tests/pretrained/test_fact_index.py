import numpy as np
import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.errors import FormatError
from sheafprop.pretrained.fact_index import FactAnswers, FactBlock, FactExecutor, FactIndex
from sheafprop.pretrained.tensor_file import StoredFile, TensorFile, write_tensors
from sheafprop.query import GraphExecutor, QueryBatch, parse_query
from sheafprop.ranking import TripleFilter

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


def test_facts_of_removed_entities_are_gone_and_the_others_renumbered(index):
    facts, left = index.from_row(0), list(range(N))
    for gone in ([2, 7], [0]):
        index = index.without(torch.tensor(gone))
        names = {left[i] for i in gone}
        left = [v for v in left if v not in names]
        facts = facts[[not names & {f[0], f[2]} for f in facts.tolist()]]
        want = [[left.index(h), r, left.index(t)] for h, r, t in facts.tolist()]
        assert index.from_row(0).tolist() == want
        assert len(index) == len(want)
        for start in (0, len(want) // 2):
            parts = [part for part in index.chunks(start, 3)]
            assert [f for part in parts for f in part.tolist()] == want[start:]
        assert index.at(torch.tensor([1, 4])).tolist() == [f for f in want if {f[0], f[2]} & {1, 4}]
        every = torch.cartesian_prod(torch.arange(len(left)), torch.arange(R), torch.arange(N - 1))
        known = set(map(tuple, want))
        assert index.contain(every).tolist() == [tuple(t) in known for t in every.tolist()]
    new = torch.tensor([[1, 0, 5], [6, 2, 6]])
    grown = index.append(new)
    assert grown.from_row(0).tolist() == [*want, *new.tolist()]
    assert grown.contain(new).all()
    assert not grown.is_whole


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_lists_are_those_of_the_facts(kind):
    facts = random_facts(40, 3)
    block = FactBlock(facts.to(kind))
    for end, column in (("head", 0), ("tail", 2)):
        near = getattr(block, end)
        order = sorted(range(40), key=lambda i: (facts[i, column], facts[i, 1], i))
        assert near.fact.tolist() == order
        assert near.entity.tolist() == sorted(set(facts[:, column].tolist()))
        for i, entity in enumerate(near.entity.tolist()):
            own = near.fact[near.start[i] : near.start[i + 1]]
            assert set(facts[own.long(), column].tolist()) == {entity}
    block.check()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("triples", lambda t: t[:, :2].clone()),
        ("triples", lambda t: t.long()),
        ("by_head.start", lambda t: t[1:].clone()),
        ("by_head.start", lambda t: t + 1),
        ("by_tail.start", lambda t: torch.cat([t[:-1], t[-1:] - 1])),
        ("by_tail.fact", lambda t: t[1:].clone()),
        ("by_tail.entity", lambda t: t[1:].clone()),
    ],
)
def test_lists_of_other_sizes_are_refused(tmp_path, name, change):
    tensors = FactBlock(random_facts(20, 0).int()).tensors()
    for number, given in enumerate((tensors, tensors | {name: change(tensors[name])})):
        path = tmp_path / f"{number}.safetensors"
        stored = StoredFile.of(path, *write_tensors(path, given))
        if given is tensors:
            assert len(FactBlock.open(TensorFile(path), stored, (N, R))) == 20
            continue
        with pytest.raises(FormatError, match="the sizes of its lists do not fit its facts"):
            FactBlock.open(TensorFile(path), stored, (N, R))


QUERIES = [
    "via(r0, e1)",
    "via(inverse(r2), e3)",
    "via(r1, via(inverse(r0), e4))",
    "and(via(r0, e1), not(via(r1, e2)))",
    "or(via(r0, e1), via(inverse(r1), e2))",
]


@pytest.fixture
def facts():
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(N, (2, 60), generator=g)
    return torch.stack([ends[0], torch.randint(R, (60,), generator=g), ends[1]], dim=1)


def test_facts_are_those_of_a_list(facts):
    own, listed = FactAnswers(FactIndex(facts)), TripleFilter(facts, N, R)
    for relation in range(R):
        for ids in ([*range(N)], [5, 2], [4, 4], []):
            entities = torch.tensor(ids, dtype=torch.int64)
            kinds = torch.full_like(entities, relation)
            for one, other in (
                (own.tails(entities, kinds), listed.tails(entities, kinds)),
                (own.heads(kinds, entities), listed.heads(kinds, entities)),
            ):
                assert torch.equal(torch.stack(one), torch.stack(other))


def test_answers_are_those_of_a_list(facts):
    entities = Vocabulary([f"e{i}" for i in range(N)])
    relations = Vocabulary([f"r{i}" for i in range(R)])
    index = FactIndex(facts[:40]).append(facts[40:])
    own, listed = FactExecutor(index, N, R), GraphExecutor(facts, N, R)
    queries = [parse_query(text) for text in QUERIES]
    for batch, _ in QueryBatch.from_queries(queries, entities, relations):
        one, other = own.answers(batch), listed.answers(batch)
        assert np.array_equal(one.start, other.start)
        assert np.array_equal(one.values, other.values)
    assert repr(own) == "FactExecutor(60 triples, num_entities=9, num_relations=3)"
