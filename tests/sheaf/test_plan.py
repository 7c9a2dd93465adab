"""The operators of a plan against autograd of the energy and a dense build."""

import pytest
import torch

from sheafprop.errors import DivergenceError
from sheafprop.sheaf import DenseSheaf, IdentitySheaf, PropagationPlan, edge_energy
from sheafprop.sheaf.spectrum import largest_eigenvalue
from tests.sheaf_cases import NUM_NODES, SHEAF_KINDS, WIDTH, dense_system, make_case, pinv_sqrt

NORMALIZATIONS = ("block", "degree", None)


def plan_of(case, normalization="block", **changes):
    arguments = dict(edge_weight=case.edge_weight, boundary_mask=case.boundary_mask)
    return PropagationPlan(
        *case.graph,
        NUM_NODES,
        normalization=normalization,
        dtype=case.x.dtype,
        **(arguments | changes),
    )


def matrix_of(function, plan, dtype):
    """A linear function of the free features, written out column by column."""
    size = plan.num_free * WIDTH
    basis = torch.eye(size, dtype=dtype).view(size, plan.num_free, WIDTH).transpose(0, 1)
    return function(basis).transpose(0, 1).reshape(size, size).T


@pytest.fixture(params=SHEAF_KINDS)
def kind(request):
    return request.param


@pytest.mark.parametrize("boundary", [0.0, 0.3])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_step_is_the_preconditioned_autograd_gradient(kind, normalization, boundary, seed):
    case = make_case(kind, seed, boundary=boundary)
    plan = plan_of(case, normalization)
    x = case.x.clone().requires_grad_()
    energy = edge_energy(x, *case.graph, case.edge_weight).sum()
    (gradient,) = torch.autograd.grad(energy / 2, x)
    _, metric, _, _ = dense_system(case, normalization)
    root = torch.block_diag(
        *[pinv_sqrt(metric[i : i + WIDTH, i : i + WIDTH]) for i in range(0, metric.shape[0], WIDTH)]
    )
    free = gradient[plan.free_index]
    expected = case.x[plan.free_index] - 0.7 * (root @ root @ free.flatten()).view_as(free)
    sections = case.x.unsqueeze(1)
    ours = plan.step(sections[plan.free_index], plan.constant(sections), 0.7)
    assert torch.allclose(ours.squeeze(1), expected, atol=1e-9)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_operator_is_symmetric_positive_and_equals_the_dense_build(kind, normalization):
    case = make_case(kind, 5)
    plan = plan_of(case, normalization)
    l_uu, metric, _, _ = dense_system(case, normalization)
    ours = matrix_of(plan.laplacian, plan, case.x.dtype)
    assert torch.allclose(ours, l_uu, atol=1e-10)
    assert torch.allclose(ours, ours.mH, atol=1e-10)
    assert torch.linalg.eigvalsh(ours)[0] > -1e-9
    normalized = matrix_of(
        lambda x: plan.precondition_sqrt(plan.laplacian(plan.precondition_sqrt(x))),
        plan,
        case.x.dtype,
    )
    spectrum = torch.linalg.eigvalsh(normalized)
    assert spectrum[0] > -1e-9
    if normalization is not None:
        assert spectrum[-1] < 2 + 1e-9
    assert largest_eigenvalue(plan, WIDTH) == pytest.approx(float(spectrum[-1]), rel=1e-6)
    applied = matrix_of(plan.apply_metric, plan, case.x.dtype)
    assert torch.allclose(applied, metric, atol=1e-9)


def test_projection_and_singular_blocks(kind):
    case = make_case(kind, 2)
    plan = plan_of(case)
    _, metric, _, _ = dense_system(case, "block")
    projection = matrix_of(plan.blocks.project, plan, case.x.dtype)
    assert torch.allclose(projection, torch.linalg.pinv(metric, rtol=1e-10) @ metric, atol=1e-8)
    for i in range(plan.num_free):
        block = metric[i * WIDTH : (i + 1) * WIDTH, i * WIDTH : (i + 1) * WIDTH]
        deficient = torch.linalg.matrix_rank(block, rtol=1e-9) < WIDTH
        assert bool(plan.blocks.singular[i]) == bool(deficient)
    # The last vertex has no edge.
    assert bool(plan.isolated[-1])
    assert plan.isolated.sum() == 1
    largest = torch.stack(
        [
            torch.linalg.matrix_norm(metric[i : i + WIDTH, i : i + WIDTH], 2)
            for i in range(0, metric.shape[0], WIDTH)
        ]
    )
    assert torch.allclose(plan.blocks.norms().double(), largest, atol=1e-9)


def test_two_path_spectrum_reaches_two():
    edge_index, edge_type = torch.tensor([[0], [1]]), torch.tensor([0])
    plan = PropagationPlan(edge_index, edge_type, IdentitySheaf(relations=1), 2)
    assert largest_eigenvalue(plan, 1) == pytest.approx(2.0)


def test_all_boundary_and_empty_graphs():
    case = make_case("dense, shared")
    plan = plan_of(case, boundary_mask=torch.ones(NUM_NODES, dtype=torch.bool))
    x = case.x.unsqueeze(1)
    assert plan.num_free == 0
    assert plan.step(x[plan.free_index], plan.constant(x), 0.9).shape == (0, 1, WIDTH)
    assert plan.components_without_boundary == 0
    none = torch.zeros(2, 0, dtype=torch.long)
    plan = PropagationPlan(none, none[0], case.sheaf, 3, dtype=torch.float64)
    start = torch.randn(3, 2, WIDTH, dtype=torch.float64)
    assert torch.equal(plan.step(start, plan.constant(start), 0.9), start)
    assert plan.isolated.all()
    assert plan.components_without_boundary == 3


def test_components_against_union_by_hand():
    edge_index = torch.tensor([[0, 1, 4, 7, 8], [1, 2, 5, 7, 9]])
    edge_type = torch.zeros(5, dtype=torch.long)
    mask = torch.zeros(10, dtype=torch.bool)
    mask[[1, 9]] = True
    plan = PropagationPlan(
        edge_index, edge_type, IdentitySheaf(relations=1), 10, boundary_mask=mask
    )
    # {0,1,2} and {8,9} are anchored; {3}, {4,5}, {6}, {7} are not.
    assert plan.components_without_boundary == 4


@pytest.mark.parametrize("length", [1, 2, 50, 1000])
def test_components_of_long_shuffled_paths(length):
    order = torch.randperm(length + 1, generator=torch.Generator().manual_seed(length))
    edge_index = torch.stack([order[:-1], order[1:]])
    plan = PropagationPlan(
        edge_index, torch.zeros(length, dtype=torch.long), IdentitySheaf(relations=1), length + 1
    )
    assert plan.components_without_boundary == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(edge_index=torch.zeros(30, 2, dtype=torch.long)), r"\[2, num_edges\].*transpose"),
        (dict(edge_index=torch.zeros(2, 30)), "integers"),
        (dict(edge_type=torch.zeros(29, dtype=torch.long)), r"30 edges.*\[29\]"),
        (dict(edge_type=torch.full((30,), 4)), r"num_relations - 1 = 3 \(got 4\)"),
        (dict(edge_index=torch.full((2, 30), 12)), r"num_nodes - 1 = 11 \(got 12\)"),
        (dict(edge_index=torch.full((2, 30), -1)), r"got -1"),
        (dict(edge_weight=torch.full((30,), -1.0)), r"not negative \(got -1.0 at edge 0\)"),
        (dict(edge_weight=torch.full((30,), float("nan"))), "finite"),
        (dict(edge_weight=torch.ones(3)), r"30 edges.*\[3\]"),
        (dict(boundary_mask=torch.zeros(13, dtype=torch.bool)), r"12 nodes.*\[13\]"),
        (dict(boundary_mask=torch.zeros(12)), "bool mask"),
        (dict(normalization="sym"), "'block', 'degree' or None"),
    ],
)
def test_bad_input_is_named(change, message):
    case = make_case("identity")
    arguments = dict(
        edge_index=case.edge_index, edge_type=case.edge_type, sheaf=case.sheaf, num_nodes=NUM_NODES
    )
    with pytest.raises(ValueError, match=message):
        PropagationPlan(**(arguments | change))


def test_dense_blocks_are_held_only_once_they_are_asked_for(monkeypatch):
    case = make_case("dense, shared")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr("sheafprop.sheaf.dense_blocks.num_threads", lambda: 2)
    for mode in (torch.no_grad, torch.inference_mode):
        plan = plan_of(case)
        sections = case.x.unsqueeze(1)
        free = sections[plan.free_index]
        with mode():
            plan.step(free, plan.constant(sections), 0.9)
            assert "blocks" not in vars(plan.blocks)
            applied = plan.apply_metric(free).clone()
        # What was found without gradients takes part in gradients of the features later.
        free = free.clone().requires_grad_()
        again = plan.apply_metric(plan.precondition(free))
        again.sum().backward()
        assert torch.allclose(plan.apply_metric(free), applied, atol=1e-12)
        assert torch.allclose(again, plan.project(free), atol=1e-9)


@pytest.mark.parametrize("normalization", ["block", None])
def test_blocks_beyond_their_number_type_are_refused_with_their_vertex(normalization):
    edge_index, edge_type = torch.tensor([[0, 2, 3], [1, 3, 1]]), torch.tensor([0, 1, 0])
    maps = torch.stack([torch.eye(2), 1e20 * torch.eye(2)])
    sheaf = DenseSheaf(maps, maps)

    def use():
        plan = PropagationPlan(edge_index, edge_type, sheaf, 4, normalization=normalization)
        plan.laplacian(torch.ones(4, 1, 2))

    with pytest.raises(DivergenceError, match="free vertex 2 "):
        use()


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_steps_of_several_sizes_do_not_share_their_factors(kind, normalization):
    case = make_case(kind, 3, boundary=0.0)
    plan = plan_of(case, normalization)
    x = case.x.unsqueeze(1)
    constant = plan.constant(x)
    for h in (0.9, 0.3, 0.9):
        with torch.no_grad():
            expected = plan.step(x, constant, h)
        found = plan.step(x.clone().requires_grad_(), constant, h)
        torch.testing.assert_close(found.detach(), expected)
