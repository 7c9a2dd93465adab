import numpy as np
import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.kernels.backend import use_backend
from sheafprop.kge import KGE_REGISTRY, build_model
from sheafprop.query import STRUCTURES, QueryAnswering, QueryBatch
from sheafprop.sheaf import DenseSheaf, IdentitySheaf
from tests.query.brute_force import best_scores, conjunctions, minimal_energies
from tests.query.trees import as_batch, fill, random_shape
from tests.sheaf_cases import SHEAF_KINDS, make_sheaf

NAMES = [name for name, shape in STRUCTURES.items() if not shape.has("not")]
MODELS = [
    *((name, {}) for name in KGE_REGISTRY),
    ("transr", {"relation_channels": 2}),
    ("transr", {"relation_channels": 6}),
]


def model_and_vectors(name, more, sections=2, dtype=torch.float64):
    model = build_model(name, num_nodes=8, num_relations=3, hidden_channels=4, **more)
    model.reset_parameters(seed=1)
    model = model.double()
    x = model.draw_entities([f"e{i}" for i in range(8)], 0, sections)
    return model.sheaf(), x.to(torch.complex128 if x.is_complex() else dtype)


def check(sheaf, x, shape, seed, weighted):
    rng = np.random.default_rng(seed)
    tree = fill(shape, rng, x.shape[0], sheaf.num_relations, weighted)
    got = QueryAnswering(sheaf, x).score(as_batch(tree, sheaf.num_relations))[0].numpy()
    want = best_scores(tree, sheaf, x.numpy())
    # Zero energies are only known to the root of the rounding error of the reference.
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-8, err_msg=str(tree))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("structure", NAMES)
@pytest.mark.parametrize(("name", "more"), MODELS)
def test_scores_are_the_minimum_over_the_whole_query_graph(name, more, structure, weighted):
    sheaf, x = model_and_vectors(name, more)
    for seed in range(3):
        check(sheaf, x, STRUCTURES[structure], seed, weighted)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_every_map_kind_and_deeper_trees(kind, weighted):
    sheaf = make_sheaf(kind)
    g = torch.Generator().manual_seed(0)
    complex_ = sheaf.dtype is not None and sheaf.dtype.is_complex
    x = torch.randn(7, 2, 3, generator=g, dtype=torch.complex128 if complex_ else torch.float64)
    for seed in range(12):
        rng = np.random.default_rng(100 + seed)
        check(sheaf, x, random_shape(rng, 5, union=seed % 3 == 0), seed, weighted)


def energy_of(sheaf, x, structure, slots, weight=None):
    answering = QueryAnswering(sheaf, x)
    batch = QueryBatch.of(structure, torch.tensor([slots]), weight)
    (conjunction,) = batch.conjunctions()
    return answering.elimination.run(conjunction).energy


def test_2i_of_transe_is_centred_on_the_mean_of_the_translated_sources():
    sheaf, x = model_and_vectors("transe", {}, sections=1)
    energy = energy_of(sheaf, x, "2i", [3, 0, 5, 2])
    b = sheaf.translation.detach()
    mean = (x[3, 0] + b[0] + x[5, 0] + b[2]) / 2
    torch.testing.assert_close(energy.centre[0, 0], mean)
    torch.testing.assert_close(energy.precision()[0], 2 * torch.eye(4, dtype=torch.float64))
    # The disagreement of the branches stays in the constant.
    gap = (x[3, 0] + b[0] - x[5, 0] - b[2]).square().sum() / 2
    torch.testing.assert_close(energy.constant[0, 0], gap)


def test_pi_of_transe_weighs_its_branches_one_half_and_one():
    sheaf, x = model_and_vectors("transe", {}, sections=1)
    energy = energy_of(sheaf, x, "pi", [3, 0, 1, 5, 2])
    b = sheaf.translation.detach()
    far, near = x[3, 0] + b[0] + b[1], x[5, 0] + b[2]
    torch.testing.assert_close(energy.centre[0, 0], (far / 2 + near) / 1.5)
    torch.testing.assert_close(energy.precision()[0], 1.5 * torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["identity", "diagonal, unitary"])
def test_precision_of_paths_is_that_of_resistors_in_series(kind):
    """Unitary maps commute with the precision: it is 1, 1/2, 1/3, and wp/(w + p) with weights."""
    sheaf = make_sheaf(kind)
    complex_ = sheaf.dtype.is_complex
    x = torch.randn(5, 1, 3, dtype=torch.complex128 if complex_ else torch.float64)
    for hops in (1, 2, 3):
        entries = energy_of(sheaf, x, f"{hops}p", [0] + [1] * hops).entries
        torch.testing.assert_close(entries, torch.full((1, 1), 1 / hops, dtype=torch.float64))
    weight = torch.tensor([[2.0, 0.5]], dtype=torch.float64)
    entries = energy_of(sheaf, x, "2p", [0, 1, 2], weight).entries
    torch.testing.assert_close(entries, torch.full((1, 1), 0.4, dtype=torch.float64))


def test_unitary_matrices_commute_with_the_precision():
    g = torch.Generator().manual_seed(0)
    maps = torch.linalg.qr(torch.randn(6, 4, 4, generator=g, dtype=torch.complex128))[0]
    sheaf = DenseSheaf(maps[:3], maps[3:])
    x = torch.randn(5, 1, 4, generator=g, dtype=torch.complex128)
    energy = energy_of(sheaf, x, "3p", [0, 0, 4, 2])
    torch.testing.assert_close(energy.precision()[0], torch.eye(4, dtype=torch.complex128) / 3)


def test_walking_backwards_exchanges_the_maps_and_turns_the_translation():
    sheaf = make_sheaf("dense, tall complex")
    turned = DenseSheaf(sheaf.tail, sheaf.head, -sheaf.translation)
    x = torch.randn(6, 2, 3, dtype=torch.complex128)
    slots = torch.tensor([[0, 1, 2], [3, 3, 0]])
    batch = QueryBatch.of("2p", slots)
    backwards = QueryBatch.of("2p", slots + torch.tensor([0, 4, 4]))
    torch.testing.assert_close(
        QueryAnswering(sheaf, x).score(backwards), QueryAnswering(turned, x).score(batch)
    )


@pytest.mark.parametrize("condition", [1e2, 9e3])
def test_badly_conditioned_maps(condition):
    rng = np.random.default_rng(0)
    g = torch.Generator().manual_seed(0)
    scale = torch.logspace(0, -np.log10(condition), 4, dtype=torch.float64)
    u, v = (
        torch.linalg.qr(torch.randn(6, 4, 4, generator=g, dtype=torch.float64))[0] for _ in "uv"
    )
    maps = u @ torch.diag(scale) @ v
    x = torch.randn(6, 1, 4, generator=g, dtype=torch.float64)
    for name in NAMES:
        check(DenseSheaf(maps[:3], maps[3:]), x, STRUCTURES[name], int(rng.integers(99)), False)


def everything(sheaf, x, seed=0):
    """Batches of 40 queries of some structures; several share their relations."""
    rng = np.random.default_rng(seed)
    for name in ("1p", "2p", "pi", "up"):
        shape = STRUCTURES[name]
        slots = [
            rng.integers(x.shape[0] if kind == "entity" else 2, size=40)
            for kind in shape.slot_kinds
        ]
        yield QueryBatch(shape, torch.from_numpy(np.stack(slots, axis=1)))


@pytest.mark.parametrize(
    "kind", ["identity", "diagonal, complex pair", "dense, pair", "dense, shared"]
)
def test_scores_do_not_depend_on_the_batch_size(kind):
    sheaf = make_sheaf(kind)
    dtype = torch.complex128 if sheaf.dtype.is_complex else torch.float64
    x = torch.randn(30, 2, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    answering = QueryAnswering(sheaf, x)
    for batch in everything(sheaf, x):
        whole = answering.score(batch)
        torch.testing.assert_close(answering.score(batch, batch_size=3), whole, rtol=0, atol=1e-12)
        single = torch.cat([answering.score(batch[slice(i, i + 1)]) for i in range(40)])
        torch.testing.assert_close(single, whole, rtol=0, atol=1e-12)
        some = torch.tensor([7, 3, 29])
        torch.testing.assert_close(answering.score(batch, some), whole[:, some], atol=1e-12, rtol=0)
        torch.testing.assert_close(answering.score(batch), whole, rtol=0, atol=0)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_many_candidates_are_scored_in_blocks(kind, monkeypatch):
    from sheafprop.query import query_answering

    sheaf = make_sheaf(kind)
    complex_ = sheaf.dtype is not None and sheaf.dtype.is_complex
    x = torch.randn(30, 2, 3, dtype=torch.complex128 if complex_ else torch.float64)
    batches = list(everything(sheaf, x))
    whole = [QueryAnswering(sheaf, x).score(batch) for batch in batches]
    monkeypatch.setattr(query_answering, "_BLOCK_FEATURES", 40)
    monkeypatch.setattr(query_answering, "_BLOCK_SCORES", 100)
    monkeypatch.setattr(query_answering, "_TILE_SCORES", 16)
    for batch, scores in zip(batches, whole, strict=True):
        torch.testing.assert_close(
            QueryAnswering(sheaf, x).score(batch), scores, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("kind", ["identity", "diagonal, real pair", "dense, pair"])
def test_single_precision_near_the_best_answer(kind):
    """An answer that fits exactly has energy zero, which a difference of squares would lose."""
    sheaf = make_sheaf(kind)
    x = torch.randn(50, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = QueryBatch.of("2p", torch.tensor([[0, 1, 2], [4, 0, 6]]))
    x[7] = energy_of(sheaf, x, "2p", [0, 1, 2]).centre[0]
    single = type(sheaf)(
        **{
            name: value.float() if isinstance(value, torch.Tensor) else value
            for name, value in vars(sheaf).items()
        }
    )
    scores = QueryAnswering(single, x.float()).score(batch)
    assert scores.dtype == torch.float32
    exact = QueryAnswering(sheaf, x).score(batch)
    torch.testing.assert_close(scores.double(), exact, rtol=3e-5, atol=1e-5)
    assert scores[0].argmax() == 7


@pytest.mark.parametrize("kind", ["identity", "diagonal, complex pair", "dense, pair"])
def test_plain_torch_gives_the_same_scores(kind):
    sheaf = make_sheaf(kind)
    dtype = torch.complex128 if sheaf.dtype.is_complex else torch.float64
    x = torch.randn(30, 2, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for batch in everything(sheaf, x):
        with use_backend("torch"):
            plain = QueryAnswering(sheaf, x).score(batch)
        torch.testing.assert_close(QueryAnswering(sheaf, x).score(batch), plain)


def test_weights_of_sections_and_relations():
    sheaf, x = model_and_vectors("rotate", {})
    relation_weight = torch.tensor([0.5, 2.0, 1.0])
    answering = QueryAnswering(
        sheaf, x, relation_weight=relation_weight, section_weight=[0.25, 0.75]
    )
    tree = ("via", ("via", ("anchor", 1), 0, False, 0.5), 1, True, 2.0)
    plain = ("via", ("via", ("anchor", 1), 0, False, 1.0), 1, True, 1.0)
    want = best_scores(tree, sheaf, x.numpy(), [0.25, 0.75])
    np.testing.assert_allclose(answering.score(as_batch(plain, 3))[0], want, atol=1e-10)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_energies_are_split_by_edge(kind):
    """The parts add up to the energy, and are those of the brute-force minimiser."""
    sheaf = make_sheaf(kind)
    complex_ = sheaf.dtype is not None and sheaf.dtype.is_complex
    g = torch.Generator().manual_seed(3)
    x = torch.randn(7, 2, 3, generator=g, dtype=torch.complex128 if complex_ else torch.float64)
    answering = QueryAnswering(sheaf, x)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        tree = fill(random_shape(rng, 4, union=True), rng, 7, 4, weighted=True)
        batch = as_batch(tree, 4)
        found = answering.answer(batch, 7, explain=True)[0]
        scores = answering.score(batch)[0]
        assert [a.score for a in found] == sorted(scores.tolist(), reverse=True)
        for answer in found:
            assert answer.score == float(scores[answer.entity])
            assert sum(part for _, part in answer.edges) == pytest.approx(answer.energy)
            terms = conjunctions(tree)
            energies = [
                [minimal_energies(term, sheaf, x[:, i].numpy())[answer.entity] for i in (0, 1)]
                for term in terms
            ]
            best = min(energies, key=lambda pair: sum(np.sqrt(pair)))
            assert answer.energy == pytest.approx(sum(best), abs=1e-9)


@pytest.mark.parametrize("name", KGE_REGISTRY)
def test_answers_of_models_in_single_precision(name):
    model = build_model(name, num_nodes=8, num_relations=3, hidden_channels=4)
    answering = QueryAnswering(model.sheaf(), model.entity_vectors())
    batch = QueryBatch.of("pi", torch.tensor([[0, 1, 5, 3, 2], [7, 0, 0, 1, 4]]))
    scores = answering.score(batch)
    assert scores.dtype == torch.float32
    for row, answers in enumerate(answering.answer(batch, 8, explain=True)):
        assert sorted(a.entity for a in answers) == list(range(8))
        for answer in answers:
            assert answer.score == float(scores[row, answer.entity])
            assert answer.energy == pytest.approx(answer.score**2, rel=1e-4, abs=1e-6)
            assert sum(part for _, part in answer.edges) == pytest.approx(answer.energy)


def test_answers_over_labels():
    entities = Vocabulary([f"e{i}" for i in range(8)], kind="entities")
    relations = Vocabulary(["r", "s t", "u"], kind="relations")
    sheaf, x = model_and_vectors("transe", {}, sections=1)
    answering = QueryAnswering(sheaf, x, entities=entities, relations=relations)
    texts = ["via('s t', e3)", "and(via(inverse(r), e1), via(u, via(r, e2)))", "via(u, e0)"]
    found = answering.answer(texts, 3, explain=True)
    assert [len(answers) for answers in found] == [3, 3, 3]
    batch = QueryBatch.of("1p", torch.tensor([[3, 1], [0, 2]]))
    scores = answering.score(batch)
    torch.testing.assert_close(answering.score([texts[0], texts[2]]), scores)
    best = int(scores[0].argmax())
    assert found[0][0].label == f"e{best}"
    assert found[0][0].score == pytest.approx(float(scores[0, best]))
    assert found[0][0].edges == (('"s t"', pytest.approx(found[0][0].energy)),)
    assert [name for name, _ in found[1][0].edges] == ["inverse(r)", "r", "u"]
    # In the order in which the query names them.
    turned = "and(via(u, via(r, e2)), via(inverse(r), e1))"
    (again,) = answering.answer(turned, 3, explain=True)
    assert [name for name, _ in again[0].edges] == ["r", "u", "inverse(r)"]
    assert [a.score for a in again] == [a.score for a in found[1]]
    # One query alone, answers not asked to be explained, and a choice of candidates.
    (one,) = answering.answer(texts[0], 2, candidates=torch.tensor([6, 1]))
    assert [a.label for a in one] == sorted(["e6", "e1"], key=lambda e: -scores[0, int(e[1])])
    assert one[0].edges is None
    # A wrong hop shows in its part of the energy.
    answer = found[1][0]
    assert max(answer.edges, key=lambda part: part[1])[1] > answer.energy / 4


def test_equal_scores_are_ordered_by_id():
    sheaf = IdentitySheaf(torch.zeros(1, 2))
    answering = QueryAnswering(sheaf, torch.ones(6, 2))
    (answers,) = answering.answer(QueryBatch.of("1p", torch.tensor([[0, 0]])), 4)
    assert [answer.entity for answer in answers] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda s, x: QueryAnswering(s, x[..., :3]), r"'x' must be \[N, 4\]"),
        (lambda s, x: QueryAnswering(s, x * torch.nan), "a vector is not finite"),
        (
            lambda s, x: QueryAnswering(IdentitySheaf(torch.full((3, 4), torch.inf)), x),
            "a relation parameter is not finite",
        ),
        (lambda s, x: QueryAnswering(s, x, section_weight=[1.0]), "'section_weight' must hold 2"),
        (lambda s, x: QueryAnswering(s, x, relation_weight=torch.ones(2)), "must hold 3 finite"),
        (
            lambda s, x: QueryAnswering(s, x, entities=Vocabulary(["a"])),
            "'entities' must hold 8 labels .got 1",
        ),
        (lambda s, x: QueryAnswering(s, x).score(["via(r, a)"]), "need 'entities' and 'relations'"),
        (
            lambda s, x: QueryAnswering(s, x).score(QueryBatch.of("1p", torch.tensor([[8, 0]]))),
            "entity ids go from 0 to 7",
        ),
        (
            lambda s, x: QueryAnswering(s, x).score(
                QueryBatch.of("1p", torch.tensor([[0, 0]])), torch.tensor([8])
            ),
            "candidate ids go from 0 to 7",
        ),
        (
            lambda s, x: QueryAnswering(s, x).score(
                QueryBatch.of("1p", torch.tensor([[0, 0]])), batch_size=0
            ),
            "'batch_size' must be positive",
        ),
        (
            lambda s, x: QueryAnswering(s, x).answer(
                QueryBatch.of("1p", torch.tensor([[0, 0]])), 0
            ),
            "'k' must be positive",
        ),
        (
            lambda s, x: QueryAnswering(s, x).score(QueryBatch.of("2in", torch.zeros(1, 4).long())),
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
    assert repr(QueryAnswering(sheaf, x)) == "QueryAnswering(IdentitySheaf, 8 x 2 x 4)"


def test_no_queries():
    sheaf, x = model_and_vectors("se", {})
    answering = QueryAnswering(sheaf, x)
    none = QueryBatch.of("pi", torch.zeros(0, 5).long())
    assert answering.score(none).shape == (0, 8)
    assert answering.answer(none) == []
