import math

import numpy as np
import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import use_backend
from sheafprop.query.link_probabilities import LinkProbabilities
from tests.query.entity_cases import TableScorer, random_links


def test_facts_by_entity_and_relation():
    triples = torch.tensor([[3, 0, 1], [3, 0, 1], [3, 0, 0], [2, 1, 3]])
    links = LinkProbabilities(triples, 5, 2)
    known = {0: [[], [0, 1], []], 1: [[], [], []], 2: [[], [], [3]], 3: [[], [2], []]}
    for relation, expected in known.items():
        rows = links.log_rows(torch.tensor([4, 3, 0]), relation)
        assert set(rows.unique().tolist()) <= {0.0, -math.inf}
        assert [(row == 0).nonzero().flatten().tolist() for row in rows] == expected
        for entity, answers in zip([4, 3, 0], expected, strict=True):
            assert [v for v in range(5) if links.is_fact(entity, relation, v)] == answers
    assert links.log_rows(torch.empty(0, dtype=torch.long), 0).shape == (0, 5)
    none = LinkProbabilities(triples[:0], 5, 2)
    assert bool((none.log_rows(torch.arange(5), 3) == -math.inf).all())
    with pytest.raises(ValueError, match="relation ids from 0 to 0"):
        LinkProbabilities(triples, 5, 1)


@pytest.mark.parametrize("cache", [0, 700, 2**20])
def test_rows_are_those_of_the_formula(cache):
    links, p = random_links(0, 9, 2, cache_bytes=cache)
    for ids in ([3, 1], [1, 8, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8]):
        for relation in range(4):
            rows = links.log_rows(torch.tensor(ids), relation).exp()
            np.testing.assert_allclose(rows, p[relation, ids], rtol=1e-12)
            for u in ids:
                for v in range(9):
                    assert links.is_fact(u, relation, v) == (p[relation, u, v] == 1)


def test_a_kept_row_is_not_computed_again_nor_changed():
    links, p = random_links(1, 9, cache_bytes=2**20)
    first = links.log_rows(torch.tensor([4, 2]), 1)
    first += 1
    again = links.log_rows(torch.tensor([2, 5, 4]), 1)
    again -= 1
    kept = links.log_rows(torch.tensor([2, 5, 4]), 1)
    np.testing.assert_allclose(kept.exp(), p[1, [2, 5, 4]], rtol=1e-12)
    assert links.scorer.asked == [(1, 4), (1, 2), (1, 5)]
    assert links.rows_computed == 3


def test_rows_are_kept_within_the_limit_and_forgotten_when_asked():
    row = 9 * 8
    links, _ = random_links(1, 9, cache_bytes=4 * row + 5)
    links.log_rows(torch.arange(9), 0)
    links.log_rows(torch.arange(9), 0)
    # A table of slots and three rows fit.
    assert links.rows_computed == 9 + 6
    links.log_rows(torch.tensor([1]), 1)
    links.log_rows(torch.tensor([1]), 1)
    assert links.rows_computed == 17
    links.make_room()
    links.log_rows(torch.tensor([1]), 1)
    links.log_rows(torch.tensor([1]), 1)
    assert links.rows_computed == 18


def test_of_more_rows_than_the_cache_holds_none_is_kept():
    links, p = random_links(1, 9, cache_bytes=4 * 9 * 8)
    kept = torch.tensor([7])
    links.row_parts(kept, 0, of=4)
    for computed in (3, 5):
        parts = links.row_parts(torch.tensor([8, 7, 2]), 0, of=5)
        assert links.rows_computed == computed
        found = torch.empty(3, 9, dtype=torch.float64)
        for part in parts:
            found[part.where] = part.table[part.place]
        np.testing.assert_allclose(found.exp(), p[0, [8, 7, 2]], rtol=1e-12)


def test_links_lead_into_the_domain_only():
    table = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
    table[0, 0, 3] = math.nan
    facts, domain = torch.tensor([[0, 0, 1], [0, 0, 2]]), torch.tensor([2, 0])
    links = LinkProbabilities(facts, 4, 1, TableScorer(table), domain=domain)
    rows = links.log_rows(torch.tensor([0, 3]), 0).exp()
    # A fact is a fact wherever it leads.
    assert rows[0, 1:3].tolist() == [1, 1]
    assert rows[:, 3].tolist() == [0, 0]
    share = table[0, 3, [0, 2]].softmax(0)
    torch.testing.assert_close(rows[1, [0, 2]], share)
    torch.testing.assert_close(rows[0, 0], (2 * table[0, 0, [0, 2]].softmax(0)[0]).clamp(max=0.999))


def test_no_entity_that_can_be_meant():
    table = torch.zeros(2, 3, 3)
    table[0, 1] = -math.inf
    links = LinkProbabilities(torch.tensor([[1, 0, 2]]), 3, 1, TableScorer(table))
    assert links.log_rows(torch.tensor([1, 0]), 0).exp()[0].tolist() == [0, 0, 1]


def test_rows_are_kept_while_there_is_room():
    links, _ = random_links(1, 9, cache_bytes=12 * 9 * 8)
    links.log_rows(torch.arange(5), 0)
    links.make_room()
    links.log_rows(torch.arange(5), 0)
    assert links.rows_computed == 5


def test_a_proximity_without_weight_is_not_asked_for():
    def near(ids):
        raise AssertionError

    links = LinkProbabilities(
        torch.zeros(0, 3).long(), 3, 1, TableScorer(torch.zeros(2, 3, 3)), log_proximity=near,
        proximity_weight=0.0,
    )  # fmt: skip
    assert links.log_rows(torch.tensor([1]), 0).exp()[0].tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("column", [0, 2])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_named(column, bad):
    table = torch.zeros(2, 3, 3)
    table[1, 2, column] = bad
    links = LinkProbabilities(torch.tensor([[1, 0, 2]]), 3, 1, TableScorer(table))
    links.log_rows(torch.tensor([1, 0, 2]), 0)
    with pytest.raises(DivergenceError, match=r"relation 0 \(inverse\) from entity 2 is NaN or"):
        links.log_rows(torch.tensor([1, 2]), 1)


def test_a_prediction_is_never_certain():
    table = torch.zeros(2, 3, 3)
    table[0, 0, 1] = 1e4
    links = LinkProbabilities(torch.zeros(0, 3).long(), 3, 1, TableScorer(table), num_answers=2.0)
    assert links.log_rows(torch.tensor([0]), 0).exp()[0].tolist() == pytest.approx([0, 0.999, 0])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"temperature": 0.0}, "'temperature' must be positive and finite, one number or 2"),
        ({"temperature": torch.ones(3)}, "'temperature' must be positive"),
        ({"num_answers": math.inf}, "'num_answers' must be positive"),
        ({"proximity_weight": math.nan}, "'proximity_weight' must be finite"),
        ({"domain": torch.tensor([3])}, "domain ids from 0 to 2"),
        ({"cache_bytes": -1}, "'cache_bytes' must not be negative"),
    ],
)
def test_bad_settings_are_refused(more, problem):
    with pytest.raises(ValueError, match=problem):
        LinkProbabilities(torch.zeros(0, 3).long(), 3, 1, **more)


def test_scores_of_another_shape_are_refused():
    links = LinkProbabilities(torch.zeros(0, 3).long(), 3, 1, TableScorer(torch.zeros(2, 3, 4)))
    with pytest.raises(ValueError, match=r"'scorer' must give scores \[2, 3\] \(got \[2, 4\]\)"):
        links.log_rows(torch.tensor([0, 2]), 1)
    facts = LinkProbabilities(torch.zeros(0, 3).long(), 3, 1)
    assert repr(facts) == "LinkProbabilities(None, num_entities=3, num_relations=1)"


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("n", [1, 255, 256, 700])
@pytest.mark.parametrize("spread", [0.1, 5.0, 300.0])
def test_single_precision_follows_double(backend, n, spread):
    rng = np.random.default_rng(n)
    table = torch.from_numpy(rng.normal(size=(2, n, n)) * spread)
    table[:, rng.random((n, n)) < 0.1] = -math.inf
    near = torch.from_numpy(rng.normal(size=(n, n)))
    domain = torch.from_numpy(np.flatnonzero(rng.random(n) < 0.8))
    facts = torch.from_numpy(rng.integers([0, 0, 0], [n, 1, n], size=(n, 3)))
    rows = []
    for dtype in (torch.float32, torch.float64):
        links = LinkProbabilities(
            facts,
            n,
            1,
            TableScorer(table.to(dtype)),
            temperature=1.7,
            log_proximity=near.to(dtype).__getitem__,
            proximity_weight=0.5,
            domain=domain,
            dtype=dtype,
        )
        with use_backend(backend if dtype == torch.float32 else "torch"):
            rows.append(links.log_rows(torch.arange(min(n, 60)), 1).double())
    # Scores themselves are rounded to 2^-24 of their size.
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-5, atol=1e-5 + 1e-6 * spread)
