import dataclasses

import numpy as np
import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.kge import KGE_REGISTRY, build_model
from sheafprop.query import STRUCTURES, EnergyScorer, QueryBatch
from sheafprop.sheaf import IdentitySheaf
from tests.query.brute_force import best_scores
from tests.query.cases import NAMES, draw_batches, model_and_vectors
from tests.query.trees import as_batch, fill
from tests.sheaf_cases import NUM_RELATIONS, SHEAF_KINDS, WIDTH, make_sheaf

NUM_ENTITIES = 7


@pytest.mark.parametrize(
    "kind", ["identity", "diagonal, complex pair", "dense, pair", "dense, shared"]
)
def test_scores_do_not_depend_on_the_batch_size(kind):
    sheaf = make_sheaf(kind)
    dtype = torch.complex128 if sheaf.dtype.is_complex else torch.float64
    x = torch.randn(30, 2, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(0))
    scorer = EnergyScorer(sheaf, x)
    for batch in draw_batches(sheaf, x):
        whole = scorer.score(batch)
        torch.testing.assert_close(scorer.score(batch, batch_size=3), whole, rtol=0, atol=1e-12)
        single = torch.cat([scorer.score(batch[slice(i, i + 1)]) for i in range(40)])
        torch.testing.assert_close(single, whole, rtol=0, atol=1e-12)
        some = torch.tensor([7, 3, 29])
        torch.testing.assert_close(scorer.score(batch, some), whole[:, some], atol=1e-12, rtol=0)
        torch.testing.assert_close(scorer.score(batch), whole, rtol=0, atol=0)


def test_weights_of_sections_and_edges():
    sheaf, x = model_and_vectors("rotate", {})
    scorer = EnergyScorer(sheaf, x, section_weight=[0.25, 0.75])
    tree = ("via", ("via", ("anchor", 1), 0, False, 0.5), 1, True, 2.0)
    want = best_scores(tree, sheaf, x.numpy(), [0.25, 0.75])
    np.testing.assert_allclose(scorer.score(as_batch(tree, 3))[0], want, atol=1e-10)


@pytest.mark.parametrize("name", KGE_REGISTRY)
def test_answers_of_models_in_single_precision(name):
    model = build_model(name, num_nodes=8, num_relations=3, hidden_channels=4)
    scorer = EnergyScorer(model.sheaf(), model.entity_vectors())
    batch = QueryBatch.of("pi", torch.tensor([[0, 1, 5, 3, 2], [7, 0, 0, 1, 4]]))
    scores = scorer.score(batch)
    assert scores.dtype == torch.float32
    for row, answers in enumerate(scorer.answer(batch, 8, explain=True)):
        assert sorted(a.entity for a in answers) == list(range(8))
        for answer in answers:
            assert answer.score == float(scores[row, answer.entity])
            assert answer.energy == pytest.approx(answer.score**2, rel=1e-4, abs=1e-6)
            assert sum(part for _, part in answer.edges) == pytest.approx(answer.energy)


def test_answers_over_labels():
    entities = Vocabulary([f"e{i}" for i in range(8)], kind="entities")
    relations = Vocabulary(["r", "s t", "u"], kind="relations")
    sheaf, x = model_and_vectors("transe", {}, sections=1)
    scorer = EnergyScorer(sheaf, x, entities=entities, relations=relations)
    texts = ["via('s t', e3)", "and(via(inverse(r), e1), via(u, via(r, e2)))", "via(u, e0)"]
    found = scorer.answer(texts, 3, explain=True)
    assert [len(answers) for answers in found] == [3, 3, 3]
    batch = QueryBatch.of("1p", torch.tensor([[3, 1], [0, 2]]))
    scores = scorer.score(batch)
    torch.testing.assert_close(scorer.score([texts[0], texts[2]]), scores)
    best = int(scores[0].argmax())
    assert found[0][0].label == f"e{best}"
    assert found[0][0].score == pytest.approx(float(scores[0, best]))
    assert found[0][0].edges == (('"s t"', pytest.approx(found[0][0].energy)),)
    assert [name for name, _ in found[1][0].edges] == ["inverse(r)", "r", "u"]
    # In the order in which the query names them.
    turned = "and(via(u, via(r, e2)), via(inverse(r), e1))"
    (again,) = scorer.answer(turned, 3, explain=True)
    assert [name for name, _ in again[0].edges] == ["r", "u", "inverse(r)"]
    assert [a.score for a in again] == [a.score for a in found[1]]
    # One query alone, answers not asked to be explained, and a choice of candidates.
    (one,) = scorer.answer(texts[0], 2, candidates=torch.tensor([6, 1]))
    assert [a.label for a in one] == sorted(["e6", "e1"], key=lambda e: -scores[0, int(e[1])])
    assert one[0].edges is None
    # A wrong hop shows in its part of the energy.
    answer = found[1][0]
    assert max(answer.edges, key=lambda part: part[1])[1] > answer.energy / 4


def test_equal_scores_are_ordered_by_id():
    sheaf = IdentitySheaf(torch.zeros(1, 2))
    scorer = EnergyScorer(sheaf, torch.ones(6, 2))
    (answers,) = scorer.answer(QueryBatch.of("1p", torch.tensor([[0, 0]])), 4)
    assert [answer.entity for answer in answers] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda s, x: EnergyScorer(s, x[..., :3]), r"'x' must be \[N, 4\]"),
        (lambda s, x: EnergyScorer(s, x * torch.nan), "'x' must be finite"),
        (
            lambda s, x: EnergyScorer(IdentitySheaf(torch.full((3, 4), torch.inf)), x),
            "'translation' must be finite",
        ),
        (lambda s, x: EnergyScorer(s, x, section_weight=[1.0]), "'section_weight' must hold 2"),
        (
            lambda s, x: EnergyScorer(s, x, entities=Vocabulary(["a"])),
            "'entities' must hold 8 labels .got 1",
        ),
        (lambda s, x: EnergyScorer(s, x).score(["via(r, a)"]), "need 'entities' and 'relations'"),
        (
            lambda s, x: EnergyScorer(s, x).score(QueryBatch.of("1p", torch.tensor([[8, 0]]))),
            "entity ids go from 0 to 7",
        ),
        (
            lambda s, x: EnergyScorer(s, x).score(
                QueryBatch.of("1p", torch.tensor([[0, 0]])), torch.tensor([8])
            ),
            "candidate ids from 0 to 7",
        ),
        (
            lambda s, x: EnergyScorer(s, x).score(
                QueryBatch.of("1p", torch.tensor([[0, 0]])), batch_size=0
            ),
            "'batch_size' must be positive",
        ),
        (
            lambda s, x: EnergyScorer(s, x).answer(QueryBatch.of("1p", torch.tensor([[0, 0]])), 0),
            "'k' must be positive",
        ),
        (
            lambda s, x: EnergyScorer(s, x).score(QueryBatch.of("2in", torch.zeros(1, 4).long())),
            "negation has no energy",
        ),
    ],
)
def test_what_does_not_fit_is_refused(build, problem):
    sheaf, x = model_and_vectors("transe", {})
    with pytest.raises(ValueError, match=problem):
        build(sheaf, x)


def test_repr():
    sheaf, x = model_and_vectors("transe", {})
    assert repr(EnergyScorer(sheaf, x)) == "EnergyScorer(IdentitySheaf, 8 x 2 x 4)"


def test_no_queries():
    sheaf, x = model_and_vectors("se", {})
    scorer = EnergyScorer(sheaf, x)
    none = QueryBatch.of("pi", torch.zeros(0, 5).long())
    assert scorer.score(none).shape == (0, 8)
    assert scorer.answer(none) == []


def renumbered(tree, entity, relation):
    if tree[0] == "anchor":
        return ("anchor", int(entity[tree[1]]))
    if tree[0] == "via":
        _, inner, r, inverse, weight = tree
        return ("via", renumbered(inner, entity, relation), int(relation[r]), inverse, weight)
    return (tree[0], tuple(renumbered(branch, entity, relation) for branch in tree[1]))


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("structure", NAMES)
def test_scores_do_not_depend_on_the_order(structure, kind):
    sheaf = make_sheaf(kind)
    g = torch.Generator().manual_seed(2)
    dtype = sheaf.dtype or torch.float64
    x = torch.randn(NUM_ENTITIES, 1, WIDTH, generator=g, dtype=dtype)
    node, relation = (torch.randperm(n, generator=g) for n in (NUM_ENTITIES, NUM_RELATIONS))
    tables = {
        field.name: value[relation]
        for field in dataclasses.fields(sheaf)
        if isinstance(value := getattr(sheaf, field.name), torch.Tensor)
    }
    other = EnergyScorer(dataclasses.replace(sheaf, **tables), x[node])
    scorer = EnergyScorer(sheaf, x)
    rng = np.random.default_rng(4)
    trees = [fill(STRUCTURES[structure], rng, NUM_ENTITIES, NUM_RELATIONS) for _ in range(4)]
    for tree in trees:
        moved = renumbered(tree, torch.argsort(node), torch.argsort(relation))
        first = scorer.score(as_batch(tree, NUM_RELATIONS))[0]
        again = other.score(as_batch(moved, NUM_RELATIONS))[0]
        # Both agree with the energies of brute_force to 1e-8 of their size in the other tests; an
        # order may change what rounding leaves by twice that at most.
        assert float((again - first[node]).abs().max()) <= 2e-8 * (1 + float(first.abs().max()))


def test_the_order_of_queries_does_not_matter():
    sheaf = make_sheaf("dense, pair")
    g = torch.Generator().manual_seed(3)
    x = torch.randn(NUM_ENTITIES, 1, WIDTH, generator=g, dtype=torch.float64)
    slots = torch.stack(
        [
            torch.randint(n, (20,), generator=g)
            for n in (NUM_ENTITIES, NUM_RELATIONS, NUM_RELATIONS)
        ],
        dim=1,
    )
    order = torch.randperm(20, generator=g)
    first = EnergyScorer(sheaf, x).score(QueryBatch.of("2p", slots))
    again = EnergyScorer(sheaf, x).score(QueryBatch.of("2p", slots[order]))
    torch.testing.assert_close(again, first[order])
