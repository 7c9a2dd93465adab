"""Partitions, and what a step costs with them."""

import sys

import numpy as np
import pytest

from sheafprop.data.partition import (
    Partition,
    hash_partition,
    metis_partition,
    partition_costs,
    read_partition,
)
from sheafprop.errors import DataError

RNG = np.random.default_rng(0)


def communities(count, size, inner):
    """A graph of communities with few edges between them, whose vertices are in no order."""
    own = np.repeat(np.arange(count), inner)
    head, tail = own * size + RNG.integers(size, size=(2, len(own)))
    between = RNG.integers(count * size, size=(2, inner // 20))
    edges = np.concatenate([np.stack([head, tail]), between], 1)
    return RNG.permutation(count * size)[edges]


def test_a_hash_gives_even_parts_and_the_same_ones_to_more_entities():
    found = hash_partition(30_000, 7)
    counts = np.bincount(found.assignment, minlength=7)
    assert counts.min() > 0.95 * counts.max()
    assert (hash_partition(100, 7).assignment == found.assignment[:100]).all()
    assert hash_partition(0, 3).assignment.shape == (0,)
    # No pattern that numbers of entities may have.
    assert np.bincount(found.assignment[::7], minlength=7).min() > 500


def test_metis_cuts_few_edges_into_even_parts():
    edges = communities(4, 200, 1500)
    by_metis = partition_costs(edges, metis_partition(edges, 800, 4))
    by_hash = partition_costs(edges, hash_partition(800, 4))
    assert by_metis.cut < 0.1 < 0.7 < by_hash.cut
    assert by_metis.rows_sent < by_hash.rows_sent / 3
    assert by_metis.balance < 1.1
    again = metis_partition(edges, 800, 4).assignment
    assert (again == metis_partition(edges, 800, 4).assignment).all()


@pytest.mark.parametrize("edges", [np.zeros((2, 0), int), np.array([[0, 1, 2], [0, 1, 2]])])
def test_graphs_without_edges_have_partitions(edges):
    assert len(metis_partition(edges, 5, 3).assignment) == 5
    costs = partition_costs(edges, metis_partition(edges, 5, 3))
    assert (costs.cut, costs.rows_sent, costs.balance) == (0, 0, 1)
    assert (metis_partition(edges, 5, 1).assignment == 0).all()


def test_costs_are_those_of_a_count_by_hand():
    head, tail = RNG.integers(12, size=(2, 40))
    assignment = RNG.integers(3, size=12).astype(np.int32)
    costs = partition_costs(np.stack([head, tail]), Partition(assignment, 3))
    pairs, cut, messages = set(), 0, [0, 0, 0]
    for h, t in zip(head.tolist(), tail.tolist(), strict=True):
        cut += assignment[h] != assignment[t]
        for a, b in ((h, t), (t, h)):
            if assignment[a] != assignment[b]:
                pairs.add((a, int(assignment[b])))
            messages[assignment[a]] += h != t
    halo = [sum(part == p for _, part in pairs) for p in range(3)]
    assert costs.cut == pytest.approx(cut / 40)
    assert costs.rows_sent == pytest.approx(len(pairs) / 12)
    assert (list(costs.halo), list(costs.messages)) == (halo, messages)
    assert list(costs.entities) == np.bincount(assignment, minlength=3).tolist()
    assert costs.balance == pytest.approx(max(messages) * 3 / sum(messages))


def test_files_of_partitions(tmp_path):
    path = tmp_path / "parts.npy"
    np.save(path, np.array([2, 0, 1], np.int64))
    assert read_partition(path, 3, 3).assignment.tolist() == [2, 0, 1]
    for content, parts, text in [
        (np.array([0, 1]), 2, r"must hold 3 integers.*got int64 \[2\]"),
        (np.array([0, 1.0, 0]), 2, "must hold 3 integers"),
        (np.array([0, 2, 0]), 2, "from 0 to 1 .got 2 for entity 1"),
        (np.array([0, -1, 0]), 2, "got -1 for entity 1"),
        (np.array([0, 2**32, 0]), 2, "got 4294967296 for entity 1"),
        (np.array([0, None, 0]), 2, "cannot be read"),
    ]:
        np.save(path, content)
        with pytest.raises(DataError, match=text):
            read_partition(path, 3, parts)
    path.write_bytes(b"")
    for missing in (path, tmp_path / "none.npy"):
        with pytest.raises(DataError, match="cannot be read"):
            read_partition(missing, 3, 2)
    with pytest.raises(ValueError, match="num_parts"):
        hash_partition(3, 0)


def test_metis_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(DataError, match=r"pip install 'sheafprop\[partition\]'"):
        metis_partition(np.array([[0], [1]]), 2, 2)
