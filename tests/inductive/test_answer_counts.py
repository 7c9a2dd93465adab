"""Observed answers and their estimated frequencies, against the definition."""

import math

import pytest
import torch

from sheafprop.inductive.answer_counts import AnswerCounts

# A repeated triple, a loop, a relation without triples (2).
TRIPLES = torch.tensor([[0, 0, 1], [3, 0, 1], [3, 0, 1], [2, 0, 4], [4, 1, 4], [1, 1, 0]])
SIZE, RELATIONS = 6, 3


def numbers(triples, query, size=SIZE, num_relations=RELATIONS):
    """How often each entity is an observed answer of a query."""
    found = [0] * size
    for head, relation, tail in triples.tolist():
        if relation == query:
            found[tail] += 1
        if relation + num_relations == query:
            found[head] += 1
    return found


def log_frequency(found):
    total, size = sum(found), len(found)
    if total == 0:
        return [0.0] * size
    once, others = found.count(1), found.count(0)
    new = (once + 0.5) / (total + 1)
    return [math.log(size * ((1 - new) * n / total if n else new / others)) for n in found]


def test_counts_are_those_of_the_triples():
    counts = AnswerCounts(TRIPLES, SIZE, RELATIONS)
    query = torch.tensor([3, 0, 5, 0, 4])
    row, entity, number = counts.of(query)
    table = torch.zeros(len(query), SIZE, dtype=torch.long)
    table[row, entity] = number
    assert table.tolist() == [numbers(TRIPLES, q) for q in query.tolist()]
    assert len(row) == int((table > 0).sum())  # each pair once
    assert int(counts.number.sum()) == 2 * len(TRIPLES)
    every = torch.zeros(2 * RELATIONS, SIZE, dtype=torch.long)
    every[counts.query, counts.answer] = counts.number
    assert every.tolist() == [numbers(TRIPLES, q) for q in range(2 * RELATIONS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frequencies_are_those_of_good_and_turing(dtype):
    counts = AnswerCounts(TRIPLES, SIZE, RELATIONS)
    query = torch.tensor([5, 0, 4, 1, 0, 3, 2])
    found = counts.log_frequency(query, dtype)
    assert found.dtype == dtype
    expected = [log_frequency(numbers(TRIPLES, q)) for q in query.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype))
    # The frequencies of all entities sum to one, also where nothing was observed.
    total = found.double().exp().mean(1)
    torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("side", ["tail", "head"])
def test_rows_of_relations_are_those_of_their_queries(side):
    counts = AnswerCounts(TRIPLES, SIZE, RELATIONS)
    relation = torch.tensor([1, 0, 2, 1, 1])
    shift = 0 if side == "tail" else RELATIONS
    expected = [log_frequency(numbers(TRIPLES, r + shift)) for r in relation.tolist()]
    torch.testing.assert_close(counts(relation, side), torch.tensor(expected))


@pytest.mark.parametrize("triples", [TRIPLES[:0], TRIPLES[:1]])
def test_few_triples_and_no_queries(triples):
    counts = AnswerCounts(triples, SIZE, RELATIONS)
    found = counts(torch.tensor([1]), "head")
    assert torch.equal(found, torch.zeros(1, SIZE))
    assert counts(torch.tensor([], dtype=torch.long), "tail").shape == (0, SIZE)
    rows = counts(torch.tensor([0]), "tail")
    torch.testing.assert_close(rows, torch.tensor([log_frequency(numbers(triples, 0))]))
    if len(triples) == 0:
        assert torch.equal(counts(torch.tensor([0, 2]), "tail"), torch.zeros(2, SIZE))


def test_an_answer_that_is_the_only_entity_keeps_what_others_would_get():
    """With all entities observed, the share of new answers goes to nobody."""
    counts = AnswerCounts(torch.tensor([[0, 0, 0], [0, 0, 0], [0, 0, 1]]), 2, 1)
    found = counts(torch.tensor([0]), "tail").double().exp().mean(1)
    new = (1 + 0.5) / (3 + 1)
    torch.testing.assert_close(found, torch.tensor([1 - new], dtype=torch.float64))
