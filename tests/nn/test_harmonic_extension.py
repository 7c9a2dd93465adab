"""The limit against the dense formula, its gradient against unrolled steps and differences."""

import dataclasses
import warnings

import pytest
import torch

from sheafprop.nn import HarmonicExtension, SheafPropagation
from sheafprop.nn.harmonic_extension import is_singular, known_regular
from sheafprop.sheaf import DiagonalSheaf, IdentitySheaf, PropagationPlan, edge_energy
from tests.nn.solvers import cases
from tests.nn.solvers.cases import system_of
from tests.nn.steps import run_steps
from tests.sheaf_cases import (
    NUM_NODES,
    SHEAF_KINDS,
    WIDTH,
    dense_limit,
    dense_system,
    make_case,
    normalized_rank,
    pinv_sqrt,
)

SOLVERS = ("cg", "chebyshev", "direct", "euler")
NORMALIZATIONS = ("block", "degree", None)


def options(case):
    return dict(edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)


def root_of(metric):
    return torch.block_diag(
        *[pinv_sqrt(metric[i : i + WIDTH, i : i + WIDTH]) for i in range(0, metric.shape[0], WIDTH)]
    )


def normalized_system(case, normalization):
    """M^1/2 on its range, and the eigenvalues of M^-1/2 L_UU M^-1/2."""
    l_uu, metric, _, _ = dense_system(case, normalization)
    root = root_of(metric)
    return metric @ root, torch.linalg.eigvalsh(root @ l_uu @ root)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("boundary", [0.0, 0.3])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_every_solver_gives_the_dense_limit(kind, boundary, normalization):
    # Few edges leave singular blocks and components without boundary, many do not.
    for seed, num_edges in ((0, 14), (1, 30), (4, 60)):
        case = make_case(kind, seed, boundary=boundary, num_edges=num_edges)
        expected = dense_limit(case, normalization)
        for solver in SOLVERS:
            if solver == "euler" and (num_edges < 60 or normalization is None):
                continue
            layer = HarmonicExtension(solver, tol=1e-12, normalization=normalization)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "without known vertices")
                out = layer(case.x, *case.graph, **options(case))
            assert torch.allclose(out, expected, atol=1e-6), (solver, num_edges)
            assert torch.equal(out[case.boundary_mask], case.x[case.boundary_mask])
            assert torch.equal(out[-1], case.x[-1])  # isolated


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_teleport_has_its_closed_form(kind, normalization):
    case = make_case(kind, 2)
    a = 0.4
    l_uu, metric, gradient, free = dense_system(case, normalization)
    expected = case.x.flatten().clone()
    expected[free] -= torch.linalg.pinv(l_uu + a * metric, rtol=1e-11, hermitian=True) @ gradient
    for solver in SOLVERS:
        layer = HarmonicExtension(solver, tol=1e-12, normalization=normalization, teleport=a)
        out, result = layer(case.x, *case.graph, **options(case), return_result=True)
        assert torch.allclose(out.flatten(), expected, atol=1e-6), solver
        moved = (expected - case.x.flatten())[free]
        pull = a * float((moved.conj() @ metric.to(moved) @ moved).real)
        energy = float(edge_energy(out, *case.graph, case.edge_weight).sum())
        assert result.energy_after == pytest.approx(energy + pull, rel=1e-6)
        assert result.energy_after <= result.energy_before + 1e-12


@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_sections_are_solved_side_by_side(kind):
    case = make_case(kind, 3)
    other = torch.where(case.boundary_mask.unsqueeze(1), case.x, case.x.flip(0) * 100)
    for solver in ("cg", "chebyshev", "direct"):
        layer = HarmonicExtension(solver, tol=1e-12)
        out = layer(torch.stack([case.x, other]), *case.graph, **options(case))
        for section, x in zip(out, (case.x, other), strict=True):
            alone = layer(x, *case.graph, **options(case))
            assert torch.allclose(section, alone, atol=1e-6), solver


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("solver", ["cg", "chebyshev", "direct"])
def test_single_precision(kind, solver):
    case = make_case(kind, 4, num_edges=60)
    single = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    tensors = {
        name: value.to(single[value.dtype])
        for name, value in vars(case.sheaf).items()
        if isinstance(value, torch.Tensor)
    }
    sheaf = dataclasses.replace(case.sheaf, **tensors)
    x = case.x.to(single[case.x.dtype])
    out = HarmonicExtension(solver, tol=1e-5)(
        x, case.edge_index, case.edge_type, sheaf, **options(case)
    )
    assert out.dtype == x.dtype
    assert torch.allclose(out.to(case.x), dense_limit(case, "block"), atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("h", [0.4, 0.9])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_theorem_two_in_the_metric_of_the_normalization(kind, h, normalization):
    case = make_case(kind, 2, boundary=0.2)
    half, values = normalized_system(case, normalization)
    top = float(values[-1])
    h = h if normalization else h * 2 / top
    nonzero = values[values > 1e-10 * top]
    rho = float((1 - h * nonzero).abs().max())
    limit = dense_limit(case, normalization)
    free = ~case.boundary_mask

    def error(x):
        return float(torch.linalg.vector_norm(half @ (x - limit)[free].flatten()))

    layer = SheafPropagation(step_size=h, normalization=normalization)
    plan = layer.plan(case.x, *case.graph, **options(case))
    path = layer.trajectory(plan, case.x.unsqueeze(1), range(0, 40, 3))
    errors = [(k, error(x.squeeze(1))) for k, x in path]
    initial = errors[0][1]
    assert all(e <= rho**k * initial * (1 + 1e-9) + 1e-6 for k, e in errors)
    # Sharp: the slowest mode decays at rate rho, no faster.
    assert rho == pytest.approx(max(abs(1 - h * float(nonzero[0])), abs(1 - h * top)))


@pytest.mark.parametrize("kind", ["identity", "diagonal, unitary", "dense, pair"])
def test_theorem_two_iteration_bound(kind):
    case = make_case(kind, 0, num_edges=60)
    half, values = normalized_system(case, "block")
    mu, top = float(values[values > 1e-10][0]), float(values[-1])
    limit, free = dense_limit(case, "block"), ~case.boundary_mask
    initial = float(torch.linalg.vector_norm(half @ (case.x - limit)[free].flatten()))
    for h in (0.5 / top, 1 / top):
        for eps in (1e-1, 1e-3):
            steps = int(torch.log(torch.tensor(initial / eps)).item() / (h * mu)) + 1
            out = run_steps(steps, case.x, *case.graph, **options(case), step_size=h)
            error = torch.linalg.vector_norm(half @ (out - limit)[free].flatten())
            assert error <= eps


def test_result_of_an_anchored_and_a_free_component():
    # 0 - 1 - 2 with 0 known; 3 - 4; 5 alone.
    edge_index = torch.tensor([[0, 1, 3], [1, 2, 4]])
    edge_type = torch.zeros(3, dtype=torch.long)
    x = torch.arange(6.0, dtype=torch.float64).unsqueeze(1)
    mask = torch.tensor([True] + [False] * 5)
    sheaf = IdentitySheaf(torch.ones(1, 1, dtype=torch.float64))
    layer = HarmonicExtension(tol=1e-10)
    out, result = layer(x, edge_index, edge_type, sheaf, boundary_mask=mask, return_result=True)
    assert torch.allclose(out.flatten(), torch.tensor([0, 1, 2, 3, 4, 5.0]).double())
    assert result.energy_after == pytest.approx(0)
    assert (result.components_without_boundary, result.isolated) == (2, 1)
    assert result.singular
    assert result.converged
    assert not result.collapsed
    assert result.iterations == 0  # the start is the limit
    x[1:] += torch.tensor([[5.0], [0.0], [1.0], [2.0], [0.0]])
    out, result = layer(x, edge_index, edge_type, sheaf, boundary_mask=mask, return_result=True)
    assert torch.allclose(out.flatten(), torch.tensor([0, 1, 2, 4.5, 5.5, 5]).double())
    assert result.solver == "direct"
    assert result.energy_before == pytest.approx(25 + 25 + 1)
    assert result.energy_after == pytest.approx(0, abs=1e-12)
    assert result.relative_residual < 1e-10
    # D^-1/2 L D^-1/2: [[1, -1/sqrt 2], [-1/sqrt 2, 1]] and {0, 2}.
    assert result.spectrum.lower == pytest.approx(1 - 0.5**0.5)
    assert result.spectrum.upper == pytest.approx(2)
    mask[3] = True
    _, result = layer(x, edge_index, edge_type, sheaf, boundary_mask=mask, return_result=True)
    assert not result.singular


@pytest.mark.parametrize("solver", SOLVERS)
def test_collapse_is_reported(solver):
    # A triangle whose phases do not add up to a full turn has no kernel.
    phase = torch.polar(torch.ones(1, 1), torch.ones(1, 1)).to(torch.complex128)
    edge_index, edge_type = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.zeros(3, dtype=torch.long)
    x = torch.randn(3, 1, dtype=torch.complex128)
    with pytest.warns(UserWarning, match="finite time"):
        out, result = HarmonicExtension(solver)(
            x, edge_index, edge_type, DiagonalSheaf(phase), return_result=True
        )
    assert result.collapsed
    assert not result.singular
    assert out.abs().max() < 1e-4


def test_more_iterations_are_not_advised_where_they_gain_nothing():
    case = make_case("dense, pair", 4, num_edges=60)
    with pytest.warns(UserWarning, match=r"gain nothing more in torch.float64: take a") as warned:
        HarmonicExtension("cg", tol=1e-30)(case.x, *case.graph, **options(case))
    assert "max_iterations" not in str(warned[0].message)


def test_stopping_short_is_said():
    case = make_case("dense, pair", 4, num_edges=60)
    for solver in ("cg", "chebyshev", "euler"):
        layer = HarmonicExtension(solver, tol=1e-12, max_iterations=3)
        with pytest.warns(UserWarning, match="raise max_iterations") as warned:
            out, result = layer(case.x, *case.graph, **options(case), return_result=True)
        # A solver is not recommended in place of itself.
        assert ("take solver='cg'" in str(warned[0].message)) == (solver != "cg")
        assert not result.converged
        assert 1e-12 < result.relative_residual < 1
        assert result.energy_after < result.energy_before
        assert torch.isfinite(out).all()


def test_out_of_reach_tolerance_ends_without_nan():
    case = make_case("dense, shared", 1, boundary=0.0)
    for solver in ("cg", "chebyshev"):
        with pytest.warns(UserWarning, match="larger tol"):
            out = HarmonicExtension(solver, tol=1e-17)(case.x, *case.graph, **options(case))
        assert torch.allclose(out, dense_limit(case, "block"), atol=1e-6)


def leaves_of(case):
    """The sheaf with fresh leaves; one leaf for a map given twice."""
    fresh, fields = {}, {}
    for field in dataclasses.fields(case.sheaf):
        value = getattr(case.sheaf, field.name)
        if isinstance(value, torch.Tensor):
            fields[field.name] = fresh.setdefault(id(value), value.clone().requires_grad_())
    return dataclasses.replace(case.sheaf, **fields), list(fresh.values())


def gradients(layer, case, weights):
    sheaf, leaves = leaves_of(case)
    x = case.x.clone().requires_grad_()
    out = layer(x, case.edge_index, case.edge_type, sheaf, **options(case))
    return torch.autograd.grad((out * weights.conj()).real.sum(), [x, *leaves])


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("teleport", [0.0, 0.3])
def test_gradient_equals_the_unrolled_one(kind, teleport):
    case = make_case(kind, 4, boundary=0.3, num_edges=60)
    weights = torch.randn_like(case.x)
    steps = 100 if teleport else 1500
    expected = gradients(SheafPropagation(steps, teleport=teleport), case, weights)
    for solver in ("cg", "chebyshev", "direct"):
        layer = HarmonicExtension(solver, tol=1e-13, teleport=teleport)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "solver=")
            found = gradients(layer, case, weights)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-6), solver


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize(
    ("normalization", "boundary", "num_edges"),
    [("block", 0.0, 14), ("block", 0.3, 40), ("degree", 0.0, 14), (None, 0.0, 40)],
)
def test_gradcheck_also_where_the_laplacian_is_singular(kind, normalization, boundary, num_edges):
    case = make_case(kind, 2, boundary=boundary, num_edges=num_edges)
    sheaf, leaves = leaves_of(case)
    if "singular" in kind:
        # Moving these maps changes the rank, where the limit has no derivative.
        leaves = []
    names = [[name for name, value in vars(sheaf).items() if value is leaf] for leaf in leaves]

    def limit(x, *values):
        changes = {n: v for group, v in zip(names, values, strict=True) for n in group}
        return HarmonicExtension("direct", tol=1e-13, normalization=normalization)(
            x,
            case.edge_index,
            case.edge_type,
            dataclasses.replace(sheaf, **changes),
            **options(case),
        )

    x = case.x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert torch.autograd.gradcheck(limit, (x, *leaves), fast_mode=True, rtol=1e-3, atol=1e-4)


def test_backward_holds_no_graph_of_the_iterations():
    case = make_case("dense, pair", 4, num_edges=60)
    sheaf, _ = leaves_of(case)
    sizes = []
    for tol in (1e-1, 1e-12):
        saved = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t
        )
        layer = HarmonicExtension("cg", tol=tol)
        plan = layer.plan(case.x, case.edge_index, case.edge_type, sheaf, **options(case))
        with hooks:
            layer(
                case.x.clone().requires_grad_(),
                case.edge_index,
                case.edge_type,
                sheaf,
                plan=plan,
            )
        sizes.append(sum(saved))
    assert sizes[0] == sizes[1] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(solver="lu"), "got 'lu'"),
        (dict(tol=0.0), "'tol'"),
        (dict(tol=1.0), "'tol'"),
        (dict(max_iterations=0), "max_iterations"),
        (dict(teleport=-1.0), "teleport"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        HarmonicExtension(**arguments)


def test_all_known_and_empty_graphs():
    case = make_case("dense, shared")
    known = torch.ones(12, dtype=torch.bool)
    none = torch.zeros(2, 0, dtype=torch.long)
    for solver in ("auto", *SOLVERS):
        layer = HarmonicExtension(solver)
        out, result = layer(case.x, *case.graph, boundary_mask=known, return_result=True)
        assert torch.equal(out, case.x)
        assert result.spectrum == (0, 0)
        out, result = layer(case.x, none, none[0], case.sheaf, return_result=True)
        assert torch.equal(out, case.x)
        assert (result.isolated, result.singular) == (12, False)


def test_long_paths():
    known = torch.zeros(5000, dtype=torch.bool)
    known[0] = True
    x = torch.zeros(5000, 1, dtype=torch.float64)
    x[0] = 1
    path = torch.stack([torch.arange(4999), torch.arange(1, 5000)])
    graph = (path, torch.zeros(4999, dtype=torch.long), IdentitySheaf(relations=1))
    out = HarmonicExtension()(x, *graph, boundary_mask=known)
    assert torch.allclose(out, torch.ones_like(out), atol=1e-3)


@pytest.mark.parametrize("boundary", [0.0, 0.3])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_small_operators_are_singular_where_the_dense_matrix_is(kind, boundary):
    for seed in range(3):
        case = make_case(kind, seed, boundary=boundary)
        plan = PropagationPlan(
            *case.graph, NUM_NODES, edge_weight=case.edge_weight,
            boundary_mask=case.boundary_mask, dtype=case.x.dtype,
        )  # fmt: skip
        rank, rank_of_metric = normalized_rank(case, "block")
        assert is_singular(plan, case.x.shape[1]) == (rank < rank_of_metric)
        if known_regular(plan):
            assert rank == rank_of_metric


def test_singular_operators_are_recognised_at_any_size():
    for known in (0.0, 0.1):
        plan, _ = system_of("identity", "path", 300, known)
        assert is_singular(plan, cases.WIDTH) == (known == 0) == (not known_regular(plan))
        # Unitary maps on a tree can be undone vertex by vertex: singular as the identity is.
        plan, _ = system_of("unitary", "tree", 300, known)
        assert is_singular(plan, cases.WIDTH) == (known == 0)
    plan, _ = system_of("unitary", "power", 300, 0.0)
    assert not is_singular(plan, cases.WIDTH)
