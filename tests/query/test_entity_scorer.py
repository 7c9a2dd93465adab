import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sheafprop.data import Vocabulary
from sheafprop.errors import DataError, DivergenceError
from sheafprop.query import (
    STRUCTURES,
    AnswerSets,
    EntityScorer,
    GraphExecutor,
    LinkProbabilities,
    QueryBatch,
    QueryShape,
    entity_scorer,
    evaluate_queries,
)
from tests.query.entity_cases import (
    TableScorer,
    enumerate_truth,
    fill_slots,
    random_links,
    random_tree,
    vertices_between,
)

_A = QueryShape("anchor")
_HOP = STRUCTURES["1p"]


def check_enumeration(shape, seed, n, count=3):
    links, p = random_links(seed, n)
    batch = QueryBatch(shape, fill_slots(shape, np.random.default_rng(seed), n, 2, count))
    found = EntityScorer(links, "all").score(batch).exp().numpy()
    for row, slots in zip(found, batch.slots.tolist(), strict=True):
        np.testing.assert_allclose(row, enumerate_truth(shape, slots, p), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("n", [1, 2, 12])
def test_truths_are_those_of_the_best_assignment(name, n):
    check_enumeration(STRUCTURES[name], len(name) + n, n)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(3, 7))
def test_truths_of_deeper_trees_are_those_of_the_best_assignment(seed, depth, n):
    shape = random_tree(np.random.default_rng(seed), depth)
    inner = [node for node in shape.walk() if node.operator == "not"]
    assume(max(map(vertices_between, [shape, *(node.branches[0] for node in inner)])) <= 6)
    check_enumeration(shape, seed, n, count=1)


@pytest.mark.parametrize(
    "shape",
    [
        QueryShape("and", (_HOP, QueryShape("not", (STRUCTURES["pni"],)))),
        QueryShape("not", (QueryShape("not", (STRUCTURES["2p"],)),)),
        QueryShape("and", (_HOP, QueryShape("or", (QueryShape("not", (_HOP,)), _HOP)))),
        QueryShape("or", (_HOP, _HOP, STRUCTURES["2p"], STRUCTURES["2i"])),
        QueryShape("and", (_A, _HOP)),
        QueryShape("via", (QueryShape("or", (_A, _A)),)),
    ],
    ids=str,
)
def test_unusual_trees(shape):
    check_enumeration(shape, 5, 6)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_facts_alone_give_the_answers_of_the_executor(seed):
    rng = np.random.default_rng(seed)
    n, r = 15, 3
    triples = torch.from_numpy(rng.integers([0, 0, 0], [n, r, n], size=(60, 3)))
    domain = torch.from_numpy(np.sort(rng.choice(n, 12, replace=False)))
    # Predicted links of a score of minus infinity have probability 0.
    empty = TableScorer(torch.full((2 * r, n, n), -math.inf))
    executor = GraphExecutor(triples, n, r, domain)
    shapes = [*STRUCTURES.values(), random_tree(rng, 4)]
    for scorer in (None, empty):
        links = LinkProbabilities(triples, n, r, scorer, domain=domain)
        for shape in shapes:
            batch = QueryBatch(shape, fill_slots(shape, rng, n, r, 5))
            truth = EntityScorer(links, "all").score(batch).exp()
            assert set(truth.unique().tolist()) <= {0.0, 1.0}
            found = [row.nonzero().flatten().tolist() for row in truth]
            assert found == [values.tolist() for values in executor.answers(batch)]


def named_batches(rng, n, r, count=7):
    for shape in STRUCTURES.values():
        yield QueryBatch(shape, fill_slots(shape, rng, n, r, count))


def test_batches_threads_and_cache_change_nothing():
    n = 40
    before = torch.get_num_threads()
    wanted = None
    for batch_size, threads, cache in ((None, 1, 0), (1, 2, 2**20), (3, 2, 3000), (5, 1, 9**5)):
        torch.set_num_threads(threads)
        try:
            links, _ = random_links(3, n, 3, facts=60, dtype=torch.float32, cache_bytes=cache)
            scorer = EntityScorer(links, 5)
            batches = named_batches(np.random.default_rng(1), n, 3)
            found = torch.stack([scorer.score(batch, batch_size=batch_size) for batch in batches])
        finally:
            torch.set_num_threads(before)
        assert not found.isnan().any()
        wanted = found if wanted is None else wanted
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["2i", "3i", "2u", "3in", "2in"])
def test_the_order_of_branches_changes_nothing(name):
    links, _ = random_links(4, 30, facts=50, dtype=torch.float32)
    shape, rng = STRUCTURES[name], np.random.default_rng(0)
    slots = fill_slots(shape, rng, 30, 2, 20)
    turned = QueryShape(shape.operator, shape.branches[::-1])
    order = [i for part in shape.branch_slots[::-1] for i in range(part.start, part.stop)]
    scorer = EntityScorer(links, 4)
    for outer in (lambda inner, s: (inner, s), lambda inner, s: (QueryShape("via", (inner,)), s)):
        (a, _), (b, _) = outer(shape, slots), outer(turned, slots)
        extra = [] if a is shape else [torch.full((20, 1), 3)]
        first = scorer.score(QueryBatch(a, torch.cat([slots, *extra], 1)))
        second = scorer.score(QueryBatch(b, torch.cat([slots[:, order], *extra], 1)))
        assert first.equal(second)


def test_a_row_is_computed_once():
    links, _ = random_links(7, 20)
    batch = QueryBatch.of("2p", torch.tensor([[0, 0, 1], [1, 0, 1], [0, 0, 1], [2, 1, 0]]))
    EntityScorer(links, "all").score(batch)
    assert len(links.scorer.asked) == len(set(links.scorer.asked)) == links.rows_computed
    # The second hops walk both relations from all entities, the first hops are among them.
    assert links.rows_computed == 2 * 20
    EntityScorer(links, "all").score(batch)
    assert links.rows_computed == 2 * 20


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.sampled_from(list(STRUCTURES)),
    st.sampled_from([[-9, 0, 0], [-2, -1, 0, 3], [0, 0.01], [-math.inf, 0, 5]]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_what_is_certain_stays_with_all_entities_between(seed, k, name, scores, dtype):
    """Many links are equally probable, or nearly so, or as good as certain."""
    rng = np.random.default_rng(seed)
    n, r, tol = 9, 2, 1e-9 if dtype == torch.float64 else 1e-5
    facts = torch.from_numpy(rng.integers([0, 0, 0], [n, r, n], size=(rng.integers(15), 3)))
    links = LinkProbabilities(
        facts,
        n,
        r,
        TableScorer(torch.from_numpy(rng.choice(scores, size=(2 * r, n, n)))),
        num_answers=float(rng.integers(1, 5)),
        domain=torch.arange(n - rng.integers(2)),
        dtype=dtype,
    )
    for shape in (STRUCTURES[name], *(random_tree(rng, depth) for depth in (3, 4, 5))):
        batch = QueryBatch(shape, fill_slots(shape, rng, n, r, 3))
        cut, whole = EntityScorer(links, k), EntityScorer(links, "all")
        exact = whole.score(batch)
        for truth in cut.truths(batch):
            own = exact[truth.rows]
            limit, share = truth.log_limit[:, None], truth.share[:, None]
            assert (own.exp() <= truth.log_truth.maximum(limit).exp() + tol).all()
            assert (own.exp() >= share * truth.log_truth.exp() - tol).all()
        for found, wanted in zip(cut.answer(batch, 5), whole.answer(batch, 5), strict=True):
            assert all(answer.certain for answer in wanted)
            sure = [answer.entity for answer in found if answer.certain]
            assert sure == [answer.entity for answer in wanted[: len(sure)]]
            assert [answer.certain for answer in found] == sorted(
                (answer.certain for answer in found), reverse=True
            )


def test_a_cut_that_cannot_matter_is_known():
    """Entity 0 leads to 1 by a fact, and on to 2 by another: other ways are below certainty."""
    facts = torch.tensor([[0, 0, 1], [1, 1, 2]])
    table = torch.zeros(4, 30, 30)
    links = LinkProbabilities(facts, 30, 2, TableScorer(table))
    batch = QueryBatch.of("2p", torch.tensor([[0, 0, 1]]))
    ((first, second),) = EntityScorer(links, 1).answer(batch, 2)
    assert (first.entity, first.truth, first.certain) == (2, 1.0, True)
    assert not second.certain
    (truth,) = EntityScorer(links, 1).truths(batch)
    assert truth.log_limit.exp().item() == pytest.approx(1 / 30)
    (answers,) = EntityScorer(links, "all").answer(
        QueryBatch.of("2p", torch.tensor([[0, 0, 1]])), 2
    )
    assert answers[1].certain


def test_contradictions_and_empty_interiors_have_no_answers():
    facts = torch.tensor([[0, 0, 1], [2, 0, 3]])
    links = LinkProbabilities(facts, 4, 2)
    scorer = EntityScorer(links, 2)
    for name, slots in (("2i", [0, 0, 2, 0]), ("2p", [1, 0, 0]), ("2in", [0, 0, 0, 0])):
        batch = QueryBatch.of(name, torch.tensor([slots]))
        assert (scorer.score(batch) == -math.inf).all()
        assert scorer.answer(batch) == [[]]
    for shape in STRUCTURES.values():
        none = QueryBatch(shape, torch.zeros(0, shape.num_slots).long())
        assert scorer.score(none).shape == (0, 4)
        assert scorer.answer(none) == []
        for truth in scorer.truths(none):
            assert truth.log_truth.shape == (0, 4)


def test_queries_over_labels():
    links, _ = random_links(1, 3, 1)
    labels = {"entities": Vocabulary(["a", "b", "c"]), "relations": Vocabulary(["r"])}
    scorer = EntityScorer(links, **labels)
    (answers,) = scorer.answer("via(inverse(r), via(r, a))", 2, candidates=torch.tensor([2, 0]))
    scores = scorer.score(["via(inverse(r), via(r, a))"]).exp()[0]
    assert sorted(answer.label for answer in answers) == ["a", "c"]
    for answer in answers:
        assert answer.truth == pytest.approx(scores["abc".index(answer.label)].item())
    with pytest.raises(DataError, match="'d'"):
        scorer.answer("via(r, d)")
    with pytest.raises(ValueError, match="queries over labels need"):
        EntityScorer(links).answer("via(r, a)")
    with pytest.raises(ValueError, match="'entities' must hold 3 labels"):
        EntityScorer(links, entities=Vocabulary(["a"]))
    with pytest.raises(ValueError, match="'k' must be an integer"):
        EntityScorer(links, 0)
    assert repr(EntityScorer(links)).endswith("k=64)")


def test_full_blocks_and_caches_start_anew(monkeypatch):
    links, _ = random_links(7, 20, cache_bytes=22 * 20 * 8)
    batch = QueryBatch.of("1p", torch.tensor([[u, q] for u in range(9) for q in range(4)]))
    scorer, shape = EntityScorer(links, 3), batch.shape
    monkeypatch.setattr(entity_scorer, "_BLOCK_TRUTHS", 5 * (2 * 20 + entity_scorer._PAIR * 3))
    assert [len(truth.rows) for truth in scorer.truths(batch)] == [5] * 7 + [1]
    before = links.rows_computed
    for _ in range(2):  # what is kept is of the last batch
        scorer.score(QueryBatch(shape, batch.slots[:4]))
    assert links.rows_computed == before + 4
    for number in (0, -1):
        with pytest.raises(ValueError, match="'batch_size' must be an integer of at least 1"):
            scorer.score(batch, batch_size=number)
        with pytest.raises(ValueError, match="'k' must be an integer of at least 1"):
            scorer.answer(batch, number)
    with pytest.raises(ValueError, match="candidate ids from 0 to 19"):
        scorer.answer(batch, candidates=torch.tensor([-1]))


def test_bad_scores_are_errors():
    table = torch.zeros(2, 3, 3)
    table[1, 2, 0] = math.nan
    links = LinkProbabilities(torch.zeros(0, 3).long(), 3, 1, TableScorer(table))
    with pytest.raises(DivergenceError, match=r"relation 0 \(inverse\) from entity 2"):
        EntityScorer(links).score(QueryBatch.of("1p", torch.tensor([[0, 0], [2, 1]])))
    with pytest.raises(ValueError, match="entity ids go from 0 to 2"):
        EntityScorer(links).score(QueryBatch.of("1p", torch.tensor([[3, 0]])))


def test_hard_answers_are_ranked():
    links, _ = random_links(2, 10)
    batch = QueryBatch.of("2p", torch.tensor([[0, 0, 1], [4, 2, 3]]))
    easy, hard = AnswerSets.from_sets([[1], []]), AnswerSets.from_sets([[2, 3], [5]])
    ranking = evaluate_queries(EntityScorer(links), batch, easy, hard, torch.arange(10))
    scores = EntityScorer(links).score(batch)
    better = int((scores[1] > scores[1, 5]).sum())
    assert ranking.counts.better.tolist()[2] == better


def test_negation_as_text():
    labels = {"entities": Vocabulary(["a", "b", "c"]), "relations": Vocabulary(["r"])}
    facts = torch.tensor([[0, 0, 1], [0, 0, 2], [1, 0, 2]])
    scorer = EntityScorer(LinkProbabilities(facts, 3, 1), **labels)
    found = scorer.answer(["and(via(r, a), not(via(r, b)))", "2in(r, r; a, b)", "1p(r; a)"])
    assert [[answer.label for answer in own] for own in found] == [["b"], ["b"], ["b", "c"]]
    with pytest.raises(DataError, match=r"all entities but some would answer a negation"):
        scorer.answer("not(via(r, a))")
