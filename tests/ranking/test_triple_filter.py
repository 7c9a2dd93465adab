import pytest
import torch

from sheafprop.ranking import TripleFilter
from sheafprop.ranking.triple_filter import GroupedValues


def random_triples(num, num_nodes, num_relations, seed=0):
    generator = torch.Generator().manual_seed(seed)
    columns = [
        torch.randint(bound, (num,), generator=generator)
        for bound in (num_nodes, num_relations, num_nodes)
    ]
    return torch.stack(columns, dim=1)


def as_sets(row, entity, size):
    found = [[] for _ in range(size)]
    for i, e in zip(row.tolist(), entity.tolist(), strict=True):
        found[i].append(e)
    return found


def test_equals_a_loop_over_all_triples():
    triples = random_triples(400, 12, 3)  # dense enough for repeated triples and full queries
    triple_filter = TripleFilter(triples, 12, 3)
    known = {tuple(t) for t in triples.tolist()}
    assert triple_filter.num_triples == len(known) < 400
    queries = random_triples(50, 12, 3, seed=1)
    tails = as_sets(*triple_filter.tails(queries[:, 0], queries[:, 1]), 50)
    heads = as_sets(*triple_filter.heads(queries[:, 1], queries[:, 2]), 50)
    for i, (h, r, t) in enumerate(queries.tolist()):
        assert tails[i] == [e for e in range(12) if (h, r, e) in known]
        assert heads[i] == [e for e in range(12) if (e, r, t) in known]


def test_queries_without_answers_and_empty_filters():
    triple_filter = TripleFilter(torch.tensor([[1, 0, 2]]), 4, 2)
    row, entity = triple_filter.tails(torch.tensor([0, 1, 1, 3]), torch.tensor([0, 0, 1, 1]))
    assert row.tolist() == [1]
    assert entity.tolist() == [2]
    empty = TripleFilter(torch.empty(0, 3, dtype=torch.long), 4, 2)
    assert empty.heads(torch.tensor([0]), torch.tensor([1]))[0].numel() == 0
    none = torch.empty(0, dtype=torch.long)
    assert triple_filter.tails(none, none)[0].numel() == 0


def test_keys_beyond_int32():
    num_nodes, num_relations = 2**31, 2**31
    last = torch.tensor([[num_nodes - 1, num_relations - 1, num_nodes - 1], [0, 1, 2]])
    triple_filter = TripleFilter(last, num_nodes, num_relations)
    row, entity = triple_filter.tails(last[:, 0], last[:, 1])
    assert row.tolist() == [0, 1]
    assert entity.tolist() == [num_nodes - 1, 2]
    with pytest.raises(ValueError, match="4294967296 entities and 4294967296 relations"):
        TripleFilter(last, 2**32, 2**32)


@pytest.mark.parametrize(
    ("triple", "message"),
    [
        ([4, 0, 0], r"head entity ids from 0 to 3 \(got 4, but there are 4\)"),
        ([0, 2, 0], r"relation ids from 0 to 1 \(got 2, but there are 2\)"),
        ([0, 0, -1], r"tail entity ids from 0 to 3 \(got -1, but there are 4\)"),
    ],
)
def test_ids_out_of_range_are_named(triple, message):
    with pytest.raises(ValueError, match=message):
        TripleFilter(torch.tensor([triple]), 4, 2)


def test_other_bad_input():
    triple_filter = TripleFilter(torch.tensor([[1, 0, 2]]), 4, 2)
    with pytest.raises(ValueError, match="got 7, but there are 4"):
        triple_filter.tails(torch.tensor([7]), torch.tensor([0]))
    with pytest.raises(ValueError, match="one relation per entity"):
        triple_filter.tails(torch.tensor([1, 2]), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"shape \[m, 3\]"):
        TripleFilter(torch.zeros(3, dtype=torch.long), 4, 2)
    with pytest.raises(ValueError, match=r"float32"):
        TripleFilter(torch.zeros(1, 3), 4, 2)


def test_composition_is_printed():
    parts = {
        "observed": torch.tensor([[0, 0, 1], [0, 0, 1], [1, 0, 2]]),
        "valid": None,
        "test": torch.tensor([[0, 0, 1], [3, 1, 2]]),
    }
    triple_filter = TripleFilter(parts, 4, 2)
    assert repr(triple_filter) == (
        "TripleFilter(3, num_nodes=4, num_relations=2, observed=3, test=2)"
    )
    assert triple_filter.describe() == (
        "3 known triples (observed 3, test 2), except the one being ranked"
    )


def test_grouped_values_are_those_of_a_dictionary():
    keys, values = random_triples(200, 15, 9).T[:2]
    grouped = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        grouped.setdefault(key, set()).add(value)
    asked = torch.tensor([3, 14, 3, 99, 0])
    found = as_sets(*GroupedValues(keys, values)(asked), 5)
    assert found == [sorted(grouped.get(key, ())) for key in asked.tolist()]


def test_a_few_keys_are_looked_up_on_one_thread(monkeypatch):
    threads = []

    def watch(run):
        return lambda *arguments: threads.append(torch.get_num_threads()) or run(*arguments)

    for name in ("searchsorted", "repeat_interleave"):
        monkeypatch.setattr(torch, name, watch(getattr(torch, name)))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        row, value = GroupedValues(torch.tensor([5, 2, 5]), torch.tensor([1, 7, 0]))(
            torch.tensor([4, 5])
        )
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 1]
    assert (row.tolist(), value.tolist()) == ([1, 1], [0, 1])
