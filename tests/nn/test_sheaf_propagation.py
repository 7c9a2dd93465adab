import itertools
import math
import warnings
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data
from torch_geometric.utils import unbatch

from sheafprop.data import KnowledgeGraph
from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import numba_loops
from sheafprop.nn import SheafConv, SheafPropagation, draw_sections
from sheafprop.sheaf import DiagonalSheaf, IdentitySheaf, edge_energy
from sheafprop.sheaf.graph_checks import GraphInput
from sheafprop.sheaf.row_plan import count_rows, needs_labels
from tests.nn.steps import run_steps
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, dense_limit, dense_system, make_case, same_numbers


def options(case):
    return dict(edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("boundary", [0.0, 0.3])
@pytest.mark.parametrize("normalization", ["block", "degree", None])
def test_limit_equals_the_dense_solution(kind, boundary, normalization):
    case = make_case(kind, 2, boundary=boundary, num_edges=60)
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
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
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


def test_nonsingular_limits_agree_between_sections():
    case = make_case("identity", 0, num_edges=60)
    start = draw_sections(case.x.unsqueeze(1).expand(-1, 3, -1), case.boundary_mask)
    layer = SheafPropagation(5000, tol=1e-12)
    out = layer(start.transpose(0, 1), *case.graph, **options(case))
    # The last vertex is isolated and keeps its own start.
    assert torch.allclose(out[0, :-1], out[2, :-1], atol=1e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(num_iterations=-1), "num_iterations"),
        (dict(teleport=-0.1), "teleport"),
        (dict(teleport=float("nan")), "teleport"),
        (dict(tol=0), "tol"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        SheafPropagation(**arguments)


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        (dict(start="zeros"), "start_sections or draw_sections"),
        (dict(num_sections=3), r"draw_sections\(...\).transpose\(0, 1\)"),
        (dict(normalize_output=True), "rescale_sections"),
        (dict(seed=1), "draw_sections"),
        (dict(accelerate=False), "trajectory"),
    ],
)
def test_arguments_of_the_first_version_name_what_does_their_work(argument, instead):
    with pytest.raises(TypeError, match=f"no '{next(iter(argument))}' any more: .*{instead}"):
        SheafPropagation(**argument)


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
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
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
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
        out = SheafPropagation(3000, step_size=1.05)(case.x, *case.graph, **options(case))
    assert torch.allclose(out, dense_limit(case, "block"), atol=1e-6)


@pytest.mark.parametrize("kind", ["identity", "diagonal, real pair", "dense, pair"])
def test_graphs_without_free_or_any_vertices(kind):
    case = make_case(kind)
    every = torch.ones(12, dtype=torch.bool)
    out = SheafPropagation(3)(case.x, *case.graph, boundary_mask=every)
    assert torch.equal(out, case.x)
    none = torch.zeros(2, 0, dtype=torch.long)
    assert SheafPropagation(3)(case.x[:0], none, none[0], case.sheaf).shape == (0, WIDTH)


def test_a_weight_that_wants_a_gradient_is_refused():
    case = make_case("identity")
    weight = case.edge_weight.clone().requires_grad_()
    with pytest.raises(ValueError, match="'edge_weight' are not offered"):
        SheafPropagation(3)(case.x, *case.graph, edge_weight=weight)


def test_a_cached_plan_notices_maps_changed_in_place():
    translation = torch.randn(4, WIDTH, dtype=torch.float64)
    case = make_case("identity")
    graph = (case.edge_index, case.edge_type, IdentitySheaf(translation))
    layer = SheafPropagation(3, cached=True)
    layer(case.x, *graph)
    translation.mul_(2)
    with pytest.raises(ValueError, match="changed in place"):
        layer(case.x, *graph)


def test_a_batch_is_its_graphs_side_by_side():
    cases = [make_case("diagonal, unitary", seed, num_edges=20 + seed) for seed in range(3)]
    shared = cases[0].sheaf
    batch = Batch.from_data_list(
        [
            Data(
                x=c.x,
                edge_index=c.edge_index,
                edge_type=c.edge_type,
                boundary_mask=c.boundary_mask,
            )
            for c in cases
        ]
    )
    layer = SheafPropagation(3)
    out = layer(
        batch.x, batch.edge_index, batch.edge_type, shared, boundary_mask=batch.boundary_mask
    )
    for case, rows in zip(cases, unbatch(out, batch.batch), strict=True):
        alone = layer(
            case.x, case.edge_index, case.edge_type, shared, boundary_mask=case.boundary_mask
        )
        assert torch.allclose(rows, alone, atol=1e-12)


def test_batches_of_knowledge_graphs_and_of_single_nodes():
    graphs = [
        KnowledgeGraph.from_labels([("a", "likes", "b"), ("b", "likes", "a")]),
        KnowledgeGraph.from_labels([("c", "likes", "c")]),
    ]
    batch = Batch.from_data_list(graphs)
    x = torch.arange(9.0).view(3, 3)
    out = SheafConv()(x, batch.edge_index, batch.edge_type, IdentitySheaf(relations=1))
    first, second = unbatch(out, batch.batch)
    assert first.shape == (2, 3)
    assert torch.equal(second, x[2:])


# Many steps at once


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize(
    ("normalization", "h", "teleport"),
    [("block", 0.9, 0.0), ("block", 1.0, 0.0), ("degree", 0.7, 0.0), ("block", 0.9, 0.2)],
)
def test_long_runs_are_equal_to_their_steps(kind, normalization, h, teleport):
    case = make_case(kind, 3)
    settings = dict(step_size=h, normalization=normalization, teleport=teleport)
    for count in (128, 301):
        ours = SheafPropagation(count, **settings)(case.x, *case.graph, **options(case))
        theirs = run_steps(count, case.x, *case.graph, **options(case), **settings)
        assert torch.allclose(ours, theirs, atol=1e-10)
        assert torch.equal(ours[case.boundary_mask], case.x[case.boundary_mask])


def test_long_runs_of_a_singular_case_and_without_normalization():
    case = make_case("dense, shared", 1, boundary=0.0)
    top = float(torch.linalg.eigvalsh(dense_system(case, None)[0])[-1])
    for settings in (dict(), dict(normalization=None, step_size=0.5 / top)):
        fast = SheafPropagation(400, **settings)(case.x, *case.graph, **options(case))
        slow = run_steps(400, case.x, *case.graph, **options(case), **settings)
        assert torch.allclose(fast, slow, atol=1e-10)


def test_number_of_operator_applications(monkeypatch):
    case = make_case("identity")
    layer = SheafPropagation(5000)
    plan = layer.plan(case.x, *case.graph, **options(case))
    calls = []
    step = plan.step
    monkeypatch.setattr(plan, "step", lambda *a: calls.append(1) or step(*a))
    expected = run_steps(5000, case.x, *case.graph, **options(case))
    out = layer(case.x, *case.graph, plan=plan)
    assert torch.allclose(out, expected, atol=1e-11)
    assert 0 < len(calls) <= 2 * math.sqrt(2 * 5000 * math.log(2 / 1e-12))
    calls.clear()
    # A curve of counts leaps where they lie far apart only.
    for count, _ in layer.trajectory(plan, case.x.unsqueeze(1), [10, 20, 5000]):
        if count == 20:
            assert len(calls) == 20
    assert len(calls) < 1000
    calls.clear()
    SheafPropagation(200, tol=1e-30)(case.x, *case.graph, plan=plan)
    assert len(calls) > 100


def test_gradients_of_long_runs():
    case = make_case("diagonal, unitary", 2)
    found = []
    for run in (SheafPropagation(200), partial(run_steps, 200)):
        x = case.x.clone().requires_grad_()
        out = run(x, *case.graph, **options(case))
        found.append(torch.autograd.grad(out.abs().sum(), x)[0])
    assert torch.allclose(*found, atol=1e-9)


def counted_rows(case, normalization="block"):
    graph = GraphInput(*case.graph, case.edge_weight, case.boundary_mask)
    labels = needs_labels(case.sheaf, normalization)
    rows, sources = count_rows(graph, labels=labels, dtype=torch.float64)
    return rows, case.x.unsqueeze(1)[sources]


@pytest.mark.skipif(numba_loops() is None, reason="needs numba")
@pytest.mark.parametrize("kind", [k for k in SHEAF_KINDS if not k.startswith("dense")])
@given(
    seed=st.integers(0, 2**16),
    boundary=st.sampled_from([0.0, 0.3]),
    normalization=st.sampled_from(["block", "degree"]),
    num_iterations=st.sampled_from([0, 1, 4, 130]),
    teleport=st.sampled_from([0.0, 0.2]),
    parts=st.sampled_from([[4], [1, 3], [1, 2, 1]]),
)
@examples(max_examples=12, deadline=None)
def test_columns_one_after_the_other_give_the_vectors_of_all(
    kind, seed, boundary, normalization, num_iterations, teleport, parts
):
    case = make_case(kind, seed, boundary=boundary)
    layer = SheafPropagation(
        num_iterations, step_size=0.8, normalization=normalization, teleport=teleport
    )
    expected = layer(case.x, *case.graph, **options(case))
    rows, known = counted_rows(case, normalization)
    parts = [WIDTH] if kind.startswith("quaternion") else parts  # one quaternion
    free = case.x[~case.boundary_mask].unsqueeze(1)
    found, start, steps = [], 0, []
    for width in parts:
        part = slice(start, start + width)
        own = free[..., part].clone()
        read = lambda part=part: known[..., part].contiguous()  # noqa: E731
        out = layer.run_columns(
            rows, case.sheaf, own, columns=part, known=read, on_step=steps.append
        )
        found.append(out)
        start += width
    assert same_numbers(torch.cat(found, -1).squeeze(1), expected[~case.boundary_mask])
    assert num_iterations > 10 or steps == [*range(1, num_iterations + 1)] * len(parts)


@pytest.mark.skipif(numba_loops() is None, reason="needs numba")
def test_columns_that_cannot_be_run():
    case = make_case("identity", 0, boundary=0.3)
    rows, known = counted_rows(case)
    free = case.x[~case.boundary_mask].unsqueeze(1)
    layer = SheafPropagation(3)
    for wrong, words in (
        (lambda: layer.run_columns(rows, case.sheaf, free[1:], known=lambda: known), "'free'"),
        (lambda: layer.run_columns(rows, case.sheaf, free.float(), known=lambda: known), "'free'"),
        (lambda: layer.run_columns(rows, case.sheaf, free, known=lambda: known[1:]), "'known'"),
        (lambda: layer.run_columns(rows, case.sheaf, free), "'known'"),
        (lambda: layer.run_columns(rows, case.sheaf, free * math.nan, known=lambda: known), "NaN"),
        (lambda: SheafPropagation(3, tol=0.1).run_columns(rows, case.sheaf, free), "'tol'"),
        (
            lambda: layer.run_columns(rows, make_case("dense, pair", 0).sheaf, free),
            "only identity and diagonal",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    far = SheafPropagation(40, step_size=9.0)
    with (
        pytest.warns(UserWarning, match="diverges"),
        pytest.raises(DivergenceError, match="energy"),
    ):
        far.run_columns(rows, case.sheaf, free.clone(), known=lambda: known)
