import numpy as np
import pytest
import torch

from sheafprop.kge import build_model
from sheafprop.query import STRUCTURES, EnergyScorer, InteriorPrior, QueryBatch
from sheafprop.sheaf import IdentitySheaf
from tests.query.brute_force import best_scores, minimal_energies
from tests.query.cases import MODELS, NAMES, model_and_vectors
from tests.query.trees import as_batch, fill, random_shape
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_sheaf

FACTS = torch.tensor([[0, 0, 1], [2, 0, 1], [3, 1, 4], [5, 1, 6], [7, 1, 6], [1, 2, 0], [4, 2, 3]])


def as_numpy(prior):
    return prior.centre.numpy(), prior.entries.numpy()


def random_case(kind, seed=0):
    sheaf = make_sheaf(kind)
    g = torch.Generator().manual_seed(seed)
    complex_ = sheaf.dtype is not None and sheaf.dtype.is_complex
    dtype = torch.complex128 if complex_ else torch.float64
    x = torch.randn(7, 2, WIDTH, generator=g, dtype=dtype)
    centre = torch.randn(2 * sheaf.num_relations, 2, WIDTH, generator=g, dtype=dtype)
    entries = torch.rand(2 * sheaf.num_relations, WIDTH, generator=g, dtype=torch.float64)
    entries[1] = 0.0  # a relation without facts
    return sheaf, x, InteriorPrior(centre, entries)


@pytest.mark.parametrize("structure", NAMES)
@pytest.mark.parametrize(("name", "more"), MODELS)
def test_scores_are_the_minimum_over_the_whole_query_graph(name, more, structure):
    sheaf, x = model_and_vectors(name, more)
    prior = InteriorPrior.of_facts(sheaf, x, FACTS)
    answering = EnergyScorer(sheaf, x, interior_prior=prior)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        tree = fill(STRUCTURES[structure], rng, 8, 3, weighted=True)
        want = best_scores(tree, sheaf, x.numpy(), prior=as_numpy(prior))
        got = answering.score(as_batch(tree, 3))[0]
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-8, err_msg=str(tree))


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_every_map_kind_and_deeper_trees(kind):
    sheaf, x, prior = random_case(kind)
    answering = EnergyScorer(sheaf, x, interior_prior=prior)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        tree = fill(random_shape(rng, 4, union=True), rng, 7, sheaf.num_relations, weighted=True)
        want = best_scores(tree, sheaf, x.numpy(), prior=as_numpy(prior))
        got = answering.score(as_batch(tree, sheaf.num_relations))[0]
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-8, err_msg=str(tree))


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_energies_are_split_by_edge(kind):
    sheaf, x, prior = random_case(kind, seed=3)
    answering = EnergyScorer(sheaf, x, interior_prior=prior)
    centre, entries = as_numpy(prior)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        tree = fill(random_shape(rng, 4), rng, 7, sheaf.num_relations, weighted=True)
        for answer in answering.answer(as_batch(tree, sheaf.num_relations), 7, explain=True)[0]:
            assert sum(part for _, part in answer.edges) == pytest.approx(answer.energy)
            sections = [
                minimal_energies(tree, sheaf, x[:, i].numpy(), (centre[:, i], entries))
                for i in range(2)
            ]
            assert answer.energy == pytest.approx(sum(e[answer.entity] for e in sections), abs=1e-9)


def test_one_scorer_serves_queries_with_and_without_interior():
    # Their precisions are vectors and numbers, whose features must not be confused.
    sheaf, x = model_and_vectors("rotate", {})
    prior = InteriorPrior.of_facts(sheaf, x, FACTS)
    answering = EnergyScorer(sheaf, x, interior_prior=prior)
    candidates = torch.tensor([5, 1, 3])
    for batch in (
        QueryBatch.of("1p", torch.tensor([[0, 1]])),
        QueryBatch.of("2p", torch.tensor([[0, 1, 2]])),
        QueryBatch.of("1p", torch.tensor([[0, 1]])),
    ):
        fresh = EnergyScorer(sheaf, x, interior_prior=prior).score(batch, candidates)
        assert torch.equal(answering.score(batch, candidates), fresh)
        # Products with more candidates may add their terms up in another order.
        torch.testing.assert_close(answering.score(batch)[:, candidates], fresh)


def test_queries_without_interior_stay_as_they_are():
    sheaf, x = model_and_vectors("transr", {})
    prior = InteriorPrior.of_facts(sheaf, x, FACTS)
    for name, slots in (("1p", [[0, 1]]), ("3i", [[0, 1, 2, 0, 3, 2]])):
        batch = QueryBatch.of(name, torch.tensor(slots))
        plain = EnergyScorer(sheaf, x).score(batch)
        assert torch.equal(EnergyScorer(sheaf, x, interior_prior=prior).score(batch), plain)


def test_statistics_of_facts():
    """Means, variances and residuals written out, a head twice where it has two facts."""
    sheaf = IdentitySheaf(torch.tensor([[1.0, 0.0], [0.0, 3.0], [9.0, 9.0]]).double())
    x = torch.tensor([[0.0, 0.0], [1.0, 0.5], [4.0, 2.0], [2.0, 1.0]]).double().unsqueeze(1)
    facts = torch.tensor([[0, 0, 1], [0, 0, 2], [3, 0, 1], [1, 1, 2]])
    prior = InteriorPrior.of_facts(sheaf, x, facts)
    heads, tails = x[[0, 0, 3], 0], x[[1, 2, 1], 0]
    torch.testing.assert_close(prior.centre[0, 0], heads.mean(0))
    torch.testing.assert_close(prior.centre[3, 0], tails.mean(0))
    b = sheaf.translation[[0, 0, 0, 1]]
    noise = (x[facts[:, 0], 0] + b - x[facts[:, 2], 0]).square().mean()
    floor = 0.01 * x[:, 0].var(0, unbiased=False).mean()
    torch.testing.assert_close(prior.entries[0], noise / (heads.var(0, unbiased=False) + floor))
    torch.testing.assert_close(prior.entries[1], (noise / floor).expand(2))  # a single head
    assert torch.equal(prior.entries[[2, 5]], torch.zeros(2, 2).double())  # no facts


def test_there_and_back_does_not_return_to_the_start():
    """In one dimension: the vertex between is pulled to where the relation leads."""
    sheaf, x = IdentitySheaf(torch.tensor([[2.0]]).double()), torch.tensor([[1.0], [5.0]]).double()
    weight, mean = 3.0, 7.0
    prior = InteriorPrior(
        torch.tensor([[[0.0]], [[mean]]]).double(), torch.tensor([[0.0], [weight]]).double()
    )
    answering = EnergyScorer(sheaf, x, interior_prior=prior)
    there_and_back = QueryBatch.of("2p", torch.tensor([[0, 0, 1]]))
    energy = answering.elimination.run(there_and_back).energy
    between = (x[0] + 2.0 + weight * mean) / (1 + weight)
    torch.testing.assert_close(energy.centre[0, 0], between - 2.0)
    assert energy.precision().item() == pytest.approx((1 + weight) / (2 + weight))
    plain = EnergyScorer(sheaf, x).elimination.run(there_and_back).energy
    assert torch.equal(plain.centre[0, 0], x[0])


@pytest.mark.parametrize("name", ["rotate", "transe", "se"])
def test_models_in_single_precision(name):
    model = build_model(name, num_nodes=8, num_relations=3, hidden_channels=4)
    x = model.entity_vectors()
    prior = InteriorPrior.of_facts(model.sheaf(), x, FACTS)
    batch = QueryBatch.of("ip", torch.tensor([[0, 1, 5, 3, 2]]))
    scores = EnergyScorer(model.sheaf(), x, interior_prior=prior).score(batch)
    assert scores.dtype == torch.float32
    assert bool(scores.isfinite().all())


def test_a_prior_of_other_vectors_is_refused():
    sheaf, x = model_and_vectors("transe", {})
    prior = InteriorPrior.of_facts(sheaf, x, FACTS)
    with pytest.raises(ValueError, match=r"with centres \[6, 1, 4\] \(got \[6, 2, 4\]\)"):
        EnergyScorer(sheaf, x[:, 0], interior_prior=prior)
    with pytest.raises(ValueError, match="needs facts"):
        InteriorPrior.of_facts(sheaf, x, FACTS[:0])


KINDS = [
    "identity",
    "diagonal, unitary",
    "diagonal, real pair",
    "dense, tall complex",
    "dense, pair",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ([[0, 0, 1], [7, 0, 1]], "head entity ids from 0 to 6 .got 7"),
        ([[0, 0, 1], [-1, 0, 1]], "head entity ids from 0 to 6 .got -1"),
        ([[0, 0, 1], [1, 0, 70]], "tail entity ids from 0 to 6 .got 70"),
        ([[0, 0, 1], [1, 0, -2]], "tail entity ids from 0 to 6 .got -2"),
        ([[0, 0, 1], [1, 4, 2]], "relation ids from 0 to 3 .got 4"),
        ([[0, 0, 1], [1, -1, 2]], "relation ids from 0 to 3 .got -1"),
        ([[0, 0], [1, 1]], r"shape \[m, 3\] \(got \(2, 2\)"),
        ([0, 0, 1], r"shape \[m, 3\] \(got \(3,\)"),
        ([[0.0, 0.0, 1.0]], "int64 vector .*float32"),
    ],
)
def test_facts_that_are_none_are_refused(kind, facts, message):
    sheaf, x, _ = random_case(kind)
    with pytest.raises(ValueError, match=message):
        InteriorPrior.of_facts(sheaf, x, torch.tensor(facts))


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_that_do_not_fit_are_refused(kind):
    sheaf, x, _ = random_case(kind)
    facts = FACTS[:1]
    for wrong in (x[0, 0], x[None]):
        with pytest.raises(ValueError, match=r"'x' must be \[N, 4\] or \[N, s, 4\]"):
            InteriorPrior.of_facts(sheaf, wrong, facts)
    with pytest.raises(ValueError, match=r"\[N, s, 4\] \(got \[7, 2, 2\]\)"):
        InteriorPrior.of_facts(sheaf, x[..., :2], facts)
    for value in (float("nan"), float("inf")):
        wrong = x.clone()
        wrong[4, 1, 0] = value
        with pytest.raises(ValueError, match=r"'x' must be finite \(got .* in row 4\)"):
            InteriorPrior.of_facts(sheaf, wrong, facts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, 7, 11, 97])
def test_equal_vectors_leave_the_interior_free(kind, count):
    """The variance is zero, of which rounding makes a little more than that."""
    sheaf, x, _ = random_case(kind)
    x = (x[:1] / 3).expand(count, -1, -1).contiguous()
    prior = InteriorPrior.of_facts(sheaf, x, torch.tensor([[0, 0, 1], [1, 1, 2]]))
    assert not bool(prior.entries.any())
    batch = QueryBatch.of("2p", torch.tensor([[0, 0, 1]]))
    free = EnergyScorer(sheaf, x).score(batch)
    torch.testing.assert_close(EnergyScorer(sheaf, x, interior_prior=prior).score(batch), free)


def test_vectors_far_from_zero_have_the_same_variance():
    sheaf, x = model_and_vectors("transe", {})
    near = InteriorPrior.of_facts(sheaf, x, FACTS)
    far = InteriorPrior.of_facts(sheaf, x + 1e7, FACTS)
    torch.testing.assert_close(far.entries, near.entries, rtol=1e-6, atol=0)
    torch.testing.assert_close(far.centre[:3], near.centre[:3] + 1e7, rtol=1e-14, atol=0)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_the_scale_of_single_precision_vectors_does_not_matter(scale):
    """Squares of such numbers are none in single precision."""
    sheaf = IdentitySheaf(relations=3)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    entries = InteriorPrior.of_facts(sheaf, x, FACTS).entries
    scaled = InteriorPrior.of_facts(sheaf, x * scale, FACTS).entries
    torch.testing.assert_close(scaled, entries, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("centre", "entries", "message"),
    [
        (torch.zeros(6, 2, 4), torch.ones(6, 3), r"with entries \[6, 4\] \(got \[6, 3\]\)"),
        (torch.zeros(6, 2, 4), torch.ones(6), r"with entries \[6, 4\] \(got \[6\]\)"),
        (torch.zeros(3, 2, 4), torch.ones(6, 4), r"with centres \[6, 2, 4\] \(got \[3, 2, 4\]"),
        (torch.zeros(6, 2, 4), torch.full((6, 4), -2.0), r"real entries from 0 on \(got -2.0\)"),
        (torch.zeros(6, 2, 4), torch.ones(6, 4).cfloat(), r"real entries.*complex64"),
        (torch.zeros(6, 2, 4).cfloat(), torch.ones(6, 4), r"real centres.*got torch.complex64"),
        (torch.full((6, 2, 4), torch.nan), torch.ones(6, 4), "must have finite centres"),
        (torch.zeros(6, 2, 4), torch.full((6, 4), torch.inf), "must have finite entries"),
    ],
)
@pytest.mark.parametrize("name", ["transe", "transr"])
def test_a_prior_that_is_none_is_refused(name, centre, entries, message):
    sheaf, x = model_and_vectors(name, {})
    with pytest.raises(ValueError, match=message):
        EnergyScorer(sheaf, x, interior_prior=InteriorPrior(centre, entries))
