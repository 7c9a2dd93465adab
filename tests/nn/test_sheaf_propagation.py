import itertools
import warnings

import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.nn import RelationPrototypes, SheafConv, SheafPropagation
from sheafprop.sheaf import DiagonalSheaf, IdentitySheaf, edge_energy
from tests.sheaf_cases import SHEAF_KINDS, dense_limit, dense_system, make_case


def options(case):
    return dict(edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("boundary", [0.0, 0.3])
@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_limit_equals_the_dense_solution(kind, boundary, normalization):
    case = make_case(kind, 4, boundary=boundary, num_edges=60)
    l_uu, _, _, _ = dense_system(case, normalization)
    h = 0.9 if normalization else float(1.5 / torch.linalg.eigvalsh(l_uu)[-1])
    layer = SheafPropagation(5_000, step_size=h, normalization=normalization, tol=1e-12)
    out = layer(case.x, *case.graph, **options(case))
    expected = dense_limit(case, normalization)
    assert torch.allclose(out, expected, atol=1e-6), (out - expected).abs().max()
    assert torch.equal(out[case.boundary_mask], case.x[case.boundary_mask])


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("h", [0.3, 0.9, 1.0])
def test_energy_never_rises(kind, h):
    for seed in range(3):
        case = make_case(kind, seed, boundary=0.2)
        layer = SheafPropagation(step_size=h)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            plan = layer.plan(case.x, *case.graph, **options(case))
            energies = [
                edge_energy(x.squeeze(1), *case.graph, case.edge_weight).sum()
                for _, x in layer.trajectory(plan, case.x.unsqueeze(1), range(12))
            ]
        for before, after in itertools.pairwise(energies):
            assert after <= before + 1e-10


@pytest.mark.parametrize("h", [0.1, 0.9])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_two_vertices_of_transe_follow_the_closed_form(h, steps):
    b = torch.tensor([[0.5, -1.0]], dtype=torch.float64)
    x = torch.tensor([[1.0, 2.0], [-3.0, 4.0]], dtype=torch.float64)
    known = torch.tensor([True, False])
    out = SheafPropagation(steps, step_size=h)(
        x, torch.tensor([[0], [1]]), torch.tensor([0]), IdentitySheaf(b), boundary_mask=known
    )
    expected = x[0] + b[0] + (1 - h) ** steps * (x[1] - x[0] - b[0])
    assert torch.allclose(out[1], expected, atol=1e-14)


def test_rotate_head_is_solved_with_the_conjugate():
    phase = torch.polar(torch.ones(1, 2, dtype=torch.float64), torch.tensor([[0.3, -1.2]]).double())
    x = torch.randn(2, 2, dtype=torch.complex128)
    known = torch.tensor([False, True])
    out = SheafPropagation(400)(
        x, torch.tensor([[0], [1]]), torch.tensor([0]), DiagonalSheaf(phase), boundary_mask=known
    )
    assert torch.allclose(out[0] * phase[0], x[1], atol=1e-12)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_many_steps_are_repeated_single_steps(kind):
    case = make_case(kind, 1)
    x = case.x
    for _ in range(5):
        x = SheafConv()(x, *case.graph, **options(case))
    out = SheafPropagation(5)(case.x, *case.graph, **options(case))
    assert torch.allclose(out, x, atol=1e-11)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("normalization", ["block", "degree"])
@pytest.mark.parametrize("h", [0.5, 0.9])
def test_teleport_reaches_its_closed_form(kind, normalization, h):
    case = make_case(kind, 2)
    a = 0.4
    l_uu, metric, gradient, free = dense_system(case, normalization)
    shift = torch.linalg.pinv(l_uu + a * metric, rtol=1e-11, hermitian=True) @ gradient
    expected = case.x.flatten().clone()
    expected[free] -= shift
    layer = SheafPropagation(500, teleport=a, step_size=h, normalization=normalization)
    out = layer(case.x, *case.graph, **options(case))
    assert torch.allclose(out.flatten(), expected, atol=1e-8)
    stopped = SheafPropagation(
        5000, teleport=a, step_size=h, normalization=normalization, tol=1e-12
    )(case.x, *case.graph, **options(case))
    assert torch.allclose(stopped, out, atol=1e-8)


def test_trajectory_equals_separate_runs():
    case = make_case("dense, shared", 3)
    layer = SheafPropagation()
    plan = layer.plan(case.x, *case.graph, **options(case))
    for count, x in layer.trajectory(plan, case.x.unsqueeze(1), [0, 1, 4, 4, 9]):
        alone = SheafPropagation(count)(case.x, *case.graph, **options(case))
        assert torch.equal(x.squeeze(1), alone)
    with pytest.raises(ValueError, match="ascend"):
        list(layer.trajectory(plan, case.x.unsqueeze(1), [3, 2]))


def test_trajectory_ignores_autocast_and_leaves_it_alone():
    case = make_case("dense, shared", 3)
    layer = SheafPropagation()
    plan = layer.plan(case.x, *case.graph, **options(case))
    expected = [x for _, x in layer.trajectory(plan, case.x.unsqueeze(1), [1, 3])]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for reference, (_, x) in zip(
            expected, layer.trajectory(plan, case.x.unsqueeze(1), [1, 3]), strict=True
        ):
            assert torch.equal(x, reference)
            assert torch.is_autocast_enabled("cpu")


def test_converged_start_counts_as_converged():
    sheaf = IdentitySheaf(torch.tensor([[1.0]]))
    x = torch.tensor([[0.0], [1.0]])
    out = SheafPropagation(10, tol=1e-6)(x, torch.tensor([[0], [1]]), torch.tensor([0]), sheaf)
    assert torch.equal(out, x)


def test_step_one_at_eigenvalue_two_is_reported():
    graph = (torch.tensor([[0], [1]]), torch.tensor([0]), IdentitySheaf(relations=1))
    x = torch.tensor([[1.0], [-1.0]])
    with pytest.warns(UserWarning, match="oscillates"):
        SheafPropagation(3, step_size=1.0)(x, *graph)
    with pytest.warns(UserWarning, match="diverges"):
        SheafPropagation(3, step_size=1.2)(x, *graph)
    triangle = torch.tensor([[0, 1, 2], [1, 2, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SheafPropagation(3, step_size=1.0)(
            torch.randn(3, 1), triangle, torch.tensor([0, 0, 0]), IdentitySheaf(relations=1)
        )


def test_unstable_plain_flow_is_refused():
    case = make_case("dense, pair")
    l_uu, *_ = dense_system(case, None)
    top = float(torch.linalg.eigvalsh(l_uu)[-1])
    with pytest.raises(ValueError, match="2 / lambda_max"):
        SheafPropagation(step_size=2.1 / top, normalization=None)(
            case.x, *case.graph, **options(case)
        )
    SheafPropagation(step_size=1.9 / top, normalization=None)(case.x, *case.graph, **options(case))


@pytest.mark.parametrize("start", ["zeros", "random"])
def test_starts_replace_free_rows_only(start):
    case = make_case("identity")
    out = SheafPropagation(0, start=start)(case.x, *case.graph, **options(case))
    assert torch.equal(out[case.boundary_mask], case.x[case.boundary_mask])
    free = out[~case.boundary_mask]
    if start == "zeros":
        assert (free == 0).all()
    else:
        assert (free != case.x[~case.boundary_mask]).all()


def test_random_start_depends_on_the_key_alone():
    case = make_case("diagonal, unitary")
    layer = SheafPropagation(0, start="random", num_sections=2, seed=7)
    keys = torch.arange(12) * 1000 + 5
    out = layer(case.x, *case.graph, **options(case), node_keys=keys)
    assert out.shape == (2, 12, 3)
    flipped = layer(
        case.x.flip(0),
        11 - case.edge_index,
        case.edge_type,
        case.sheaf,
        boundary_mask=case.boundary_mask.flip(0),
        node_keys=keys.flip(0),
    )
    assert torch.equal(flipped.flip(1), out)
    other = SheafPropagation(0, start="random", num_sections=2, seed=8)(
        case.x, *case.graph, **options(case), node_keys=keys
    )
    assert not torch.equal(other[:, ~case.boundary_mask], out[:, ~case.boundary_mask])


def test_prototype_start_is_the_mean_over_triple_ends():
    # Training: relation 0 from {0, 1} to {2}; relation 1 never occurs.
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    train = torch.tensor([[0, 1], [2, 2]])
    prototypes = RelationPrototypes.from_triples(x, train, torch.tensor([0, 0]), 2)
    assert torch.equal(prototypes.mean, torch.tensor([[0, 8.0], [0, 0], [2.0, 0.0], [0, 0]]))
    assert prototypes.count.tolist() == [2, 0, 2, 0]
    # Node 3: twice a head and once a tail of relation 0, and a head of relation 1; node 4: only 1.
    edge_index = torch.tensor([[3, 3, 0, 3], [0, 1, 3, 4]])
    edge_type = torch.tensor([0, 0, 0, 1])
    known = torch.tensor([True, True, True, False, False])
    features = torch.cat([x, torch.full((2, 2), 9.0)])
    layer = SheafPropagation(0, start="prototype")
    out = layer(
        features,
        edge_index,
        edge_type,
        IdentitySheaf(relations=2),
        boundary_mask=known,
        prototypes=prototypes,
    )
    assert torch.allclose(out[3], torch.tensor([4 / 3, 8 / 3]))
    random = SheafPropagation(0, start="random")(
        features, edge_index, edge_type, IdentitySheaf(relations=2), boundary_mask=known
    )
    assert torch.equal(out[4], random[4])
    mixed = SheafPropagation(0, start="mixed", num_sections=3)(
        features,
        edge_index,
        edge_type,
        IdentitySheaf(relations=2),
        boundary_mask=known,
        prototypes=prototypes,
    )
    assert torch.equal(mixed[0, 3], out[3])
    assert not torch.allclose(mixed[1, 3], out[3])
    weighted = layer(
        features,
        edge_index,
        edge_type,
        IdentitySheaf(relations=2),
        boundary_mask=known,
        prototypes=prototypes,
        edge_weight=torch.tensor([0.0, 1.0, 3.0, 1.0]),
    )
    assert torch.allclose(weighted[3], torch.tensor([0.5, 6.0]))
    with pytest.raises(ValueError, match="needs 'prototypes'"):
        layer(features, edge_index, edge_type, IdentitySheaf(relations=2), boundary_mask=known)


def test_output_rows_take_the_length_of_the_known_ones():
    case = make_case("identity", 3)
    out = SheafPropagation(5, normalize_output=True)(case.x, *case.graph, **options(case))
    known = torch.linalg.vector_norm(case.x[case.boundary_mask], dim=1).mean()
    lengths = torch.linalg.vector_norm(out[~case.boundary_mask], dim=1)
    assert torch.allclose(lengths, known.expand_as(lengths))
    assert torch.equal(out[case.boundary_mask], case.x[case.boundary_mask])
    zeros = SheafPropagation(0, start="zeros", normalize_output=2.0)(
        case.x, *case.graph, **options(case)
    )
    assert (zeros[~case.boundary_mask] == 0).all()


def test_nonsingular_limits_agree_between_sections():
    case = make_case("identity", 0, num_edges=60)
    layer = SheafPropagation(5000, start="random", num_sections=3, tol=1e-12)
    out = layer(case.x, *case.graph, **options(case))
    # The last vertex is isolated and keeps its own start.
    assert torch.allclose(out[0, :-1], out[2, :-1], atol=1e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(num_iterations=-1), "num_iterations"),
        (dict(num_sections=0), "num_sections"),
        (dict(start="mean"), "got 'mean'"),
        (dict(teleport=-0.1), "teleport"),
        (dict(teleport=float("nan")), "teleport"),
        (dict(tol=0), "tol"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        SheafPropagation(**arguments)


def test_sections_twice_are_refused():
    case = make_case("identity")
    with pytest.raises(ValueError, match="already has 2 sections"):
        SheafPropagation(num_sections=3, start="random")(torch.stack([case.x, case.x]), *case.graph)


def test_eigenvalue_two_far_from_the_ends_of_the_process_is_found():
    # The Ritz values of 60 steps on this path stay below 2 - 1e-3.
    edge_index = torch.stack([torch.arange(999), torch.arange(1, 1000)])
    graph = (edge_index, torch.zeros(999, dtype=torch.long), IdentitySheaf(relations=1))
    x = torch.randn(1000, 1, dtype=torch.float64)
    with pytest.warns(UserWarning, match="oscillates"):
        SheafPropagation(1, step_size=1.0)(x, *graph)
    known = torch.arange(1000) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SheafPropagation(1, step_size=1.0)(x, *graph, boundary_mask=known)
        # Teleport takes the oscillation away.
        SheafPropagation(1, step_size=1.0, teleport=0.1)(x, *graph)


def test_rising_energy_stops_with_advice():
    graph = (torch.tensor([[0], [1]]), torch.tensor([0]), IdentitySheaf(relations=1))
    x = torch.tensor([[1.0], [-1.0]])
    layer = SheafPropagation(1000, step_size=1.2)
    with pytest.warns(UserWarning, match="diverges"), pytest.raises(DivergenceError, match="rose"):
        layer(x, *graph)
    # The same size is fine where the spectrum ends early enough.
    case = make_case("identity", 4, num_edges=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = SheafPropagation(3000, step_size=1.05)(case.x, *case.graph, **options(case))
    assert torch.allclose(out, dense_limit(case, "block"), atol=1e-6)


@pytest.mark.parametrize("kind", ["identity", "diagonal, real pair", "dense, pair"])
def test_graphs_without_free_or_any_vertices(kind):
    case = make_case(kind)
    every = torch.ones(12, dtype=torch.bool)
    out = SheafPropagation(3)(case.x, *case.graph, boundary_mask=every)
    assert torch.equal(out, case.x)
    none = torch.zeros(2, 0, dtype=torch.long)
    assert SheafPropagation(3)(case.x[:0], none, none[0], case.sheaf).shape == (0, 3)


def test_a_weight_that_wants_a_gradient_is_refused():
    case = make_case("identity")
    weight = case.edge_weight.clone().requires_grad_()
    with pytest.raises(ValueError, match="'edge_weight' are not offered"):
        SheafPropagation(3)(case.x, *case.graph, edge_weight=weight)


def test_a_cached_plan_notices_maps_changed_in_place():
    translation = torch.randn(4, 3, dtype=torch.float64)
    case = make_case("identity")
    graph = (case.edge_index, case.edge_type, IdentitySheaf(translation))
    layer = SheafPropagation(3, cached=True)
    layer(case.x, *graph)
    translation.mul_(2)
    with pytest.raises(ValueError, match="changed in place"):
        layer(case.x, *graph)
