import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sheafprop.data import (
    connected_components,
    count_duplicates,
    first_occurrences,
    triple_codes,
)

TRIPLES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)), max_size=12)


def as_tensor(rows):
    return torch.tensor(rows, dtype=torch.int64).view(-1, 3)


@given(TRIPLES, TRIPLES)
def test_codes_are_equal_where_triples_are(first, second):
    codes = [part.tolist() for part in triple_codes(as_tensor(first), as_tensor(second))]
    assert [len(part) for part in codes] == [len(first), len(second)]
    both = list(zip(first + second, codes[0] + codes[1], strict=True))
    assert all((row == other) == (code == its) for row, code in both for other, its in both)
    assert count_duplicates(as_tensor(first)) == len(first) - len(set(first))
    kept = as_tensor(first)[first_occurrences(as_tensor(first))]
    assert list(map(tuple, kept.tolist())) == list(dict.fromkeys(first))


def test_codes_do_not_overflow_with_large_ids():
    # With 2^31 entities and 2^32 relations, (2, 0, 0) is number 2^64 of all triples: 0 in 64 bits.
    rows = as_tensor([[2, 0, 0], [0, 0, 0], [2**31 - 1, 2**32 - 1, 0]])
    (codes,) = triple_codes(rows)
    assert len(codes.unique()) == 3


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=14),
)
def test_components_equal_a_search(num_nodes, edges):
    edges = [(h % num_nodes, t % num_nodes) for h, t in edges]
    expected = list(range(num_nodes))
    for _ in range(num_nodes):
        for head, tail in edges:
            expected[head] = expected[tail] = min(expected[head], expected[tail])
    index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).t()
    assert connected_components(index, num_nodes).tolist() == expected


@pytest.mark.parametrize("kind", ["path", "star"])
def test_components_of_long_paths_and_stars(kind):
    generator = torch.Generator().manual_seed(0)
    names = torch.randperm(20000, generator=generator)
    heads = names[:-1] if kind == "path" else names[-1:].expand(19999)
    edges = torch.stack([heads, names[1:] if kind == "path" else names[:-1]])
    assert connected_components(edges, 20000).unique().tolist() == [0]
