import pytest
import torch

from sheafprop.inductive.section_scorer import CandidateScorer, KnownRows, SectionScorer
from sheafprop.kge import build_model
from sheafprop.pretrained.blocks import RowBlocks
from tests.inductive.test_inductive_propagation import trained
from tests.toy import toy_data


@pytest.mark.parametrize("weight", [[1.0], [0.4, 0.3, 0.3], [0.25, 0.25, 0.25, 0.25]])
@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_scores_are_the_weighted_sum_over_sections(name, weight):
    model = trained(name, toy_data()).double()
    g = torch.Generator().manual_seed(0)
    dtype = model.entity_vectors().dtype
    x = torch.randn(5, len(weight), 8, generator=g, dtype=dtype)
    scorer = SectionScorer(model, x, weight)
    head, rel, tail = torch.tensor([[0, 4, 2], [1, 0, 2], [3, 3, 2]])
    parts = [(a, x[:, i]) for i, a in enumerate(weight)]
    want = sum(a * model.score_triples(v, head, rel, tail) for a, v in parts)
    row = torch.arange(3)
    torch.testing.assert_close(scorer.score_tails(head, rel)[row, tail], want)
    torch.testing.assert_close(scorer.score_heads(rel, tail)[row, head], want)


def test_vectors_that_are_not_finite_are_never_scored():
    model = trained("transe", toy_data())
    x = torch.zeros(4, 1, 8)
    x[2, 0, 3] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        SectionScorer(model, x, [1.0])
    with pytest.raises(ValueError, match="2 weights"):
        SectionScorer(model, torch.zeros(4, 1, 8), [0.5, 0.5])


@pytest.mark.parametrize("rows", [4, 11])
@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_known_entities_may_be_any_rows_of_the_table(name, rows):
    model = trained(name, toy_data()).double()
    g = torch.Generator().manual_seed(1)
    dtype = model.entity_vectors().dtype
    table = torch.randn(rows, 8, generator=g, dtype=dtype)
    mask = torch.tensor([True, False, True, True, False, False])
    source = torch.tensor([3, 0, 2]) if rows == 4 else torch.tensor([10, 4, 7])
    known = KnownRows.select(table, source, mask)
    # A table of which most rows are not needed is not kept.
    assert len(known.table) == (4 if rows == 4 else 3)
    free = torch.randn(3, 2, 8, generator=g, dtype=dtype)
    weight = [0.7, 0.3]
    x = known.join(free)
    assert torch.equal(x[mask], table[source].unsqueeze(1).expand(-1, 2, -1))
    assert torch.equal(x[~mask], free)
    whole, parts = SectionScorer(model, x, weight), SectionScorer(model, free, weight, None, known)
    entity, relation = torch.arange(6).repeat(2), torch.tensor([0, 1]).repeat_interleave(6)
    torch.testing.assert_close(
        parts.score_tails(entity, relation), whole.score_tails(entity, relation)
    )
    torch.testing.assert_close(
        parts.score_heads(relation, entity), whole.score_heads(relation, entity)
    )
    # One kind of query at a time, too.
    for one in (0, 1):
        got = parts.score_tails(torch.tensor([one]), torch.tensor([1]))
        want = whole.score_tails(torch.tensor([one]), torch.tensor([1]))
        torch.testing.assert_close(got, want)


def test_a_free_vector_that_is_not_finite_is_named_by_its_entity():
    model = trained("transe", toy_data())
    mask = torch.tensor([True, False, True, False])
    known = KnownRows.select(torch.zeros(2, 8), torch.arange(2), mask)
    free = torch.zeros(2, 1, 8)
    free[1, 0, 2] = float("inf")
    with pytest.raises(ValueError, match="'d'"):
        SectionScorer(model, free, [1.0], list("abcd"), known)


@pytest.mark.parametrize("name", ["rotate", "se"])
def test_scores_around_known_vectors_do_not_follow_autocast(name):
    model = trained(name, toy_data())
    g = torch.Generator().manual_seed(3)
    dtype = model.entity_vectors().dtype
    mask = torch.tensor([True, False, True, True])
    known = KnownRows.select(torch.randn(3, 8, generator=g, dtype=dtype), torch.arange(3), mask)
    free = torch.randn(1, 2, 8, generator=g, dtype=dtype)
    scorer = SectionScorer(model, free, [0.5, 0.5], None, known)
    query = torch.tensor([0, 1]), torch.tensor([1, 0])
    want = scorer.score_tails(*query)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = scorer.score_tails(*query)
    assert torch.equal(got, want)


@pytest.fixture
def use_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize(
    ("name", "kge_args"),
    [
        ("transe", {"p": 2}),
        ("transe", {"p": 1}),
        ("rotate", {}),
        ("pairre", {}),
        ("se", {}),
        ("transr", {}),
    ],
)
def test_scores_do_not_depend_on_the_number_of_threads(name, kge_args, queries, use_threads):
    width = 16 if name == "rotate" else 32
    model = build_model(name, num_nodes=2, num_relations=4, hidden_channels=width, **kge_args)
    model.reset_parameters(seed=3)
    g = torch.Generator().manual_seed(5)
    dtype = torch.complex64 if model.is_complex else torch.float32
    # More rows than any chunk has.
    rows = torch.randn(140_000, 1, width, generator=g, dtype=dtype)
    known, relation = rows[:queries], torch.arange(queries)
    found = []
    for threads in (1, 2, 5):
        use_threads(threads)
        scorer = CandidateScorer(model, model.sheaf(), RowBlocks([rows]), [1.0])
        found.append(scorer.scores(known, relation, "tail"))
        assert torch.get_num_threads() == threads
    some = torch.arange(0, 140_000, 9973)
    reference = model.double().score_candidates(
        known[:, 0].to(torch.promote_types(dtype, torch.float64)),
        relation,
        rows[some, 0].to(torch.promote_types(dtype, torch.float64)),
        "tail",
    )
    # Squares of distances are sums of 32 terms, none above 4 times the greatest of them: each of at
    # most 64 roundings (map, translation, product, sum) costs a unit.
    error = 64 * 4 * torch.finfo(torch.float32).eps * reference.square().max()
    for scores in found:
        assert (scores[:, some].square() - reference.square()).abs().max() <= error
        assert (scores.square() - found[0].square()).abs().max() <= 2 * error


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("queries", [3, 11])
def test_scores_of_few_and_of_many_queries(queries, squared):
    model = build_model("rotate", num_nodes=2, num_relations=4, hidden_channels=6, squared=squared)
    model.reset_parameters(seed=3)
    g = torch.Generator().manual_seed(5)
    x = torch.randn(40, 1, 6, generator=g, dtype=torch.complex64)
    scorer = CandidateScorer(model, model.sheaf(), RowBlocks([x]), (1.0,))
    entity, relation = torch.arange(queries), torch.arange(queries) % 4
    for side, want in (
        ("tail", model.score_tails(x, entity, relation)),
        ("head", model.score_heads(x, relation, entity)),
    ):
        got = scorer.scores(x[entity], relation, side)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    # An entity is at distance zero, and never below.
    squares = torch.tensor([-1e-7, 0.0, 4.0, torch.nan]).repeat(queries, 1)
    scorer._finish(squares)
    want = torch.tensor([0.0, 0.0, -4.0 if squared else -2.0, torch.nan]).repeat(queries, 1)
    torch.testing.assert_close(squares, want, rtol=0, atol=0, equal_nan=True)
