"""Another order of triples, vertices and relations changes a result by rounding only."""

import dataclasses

import pytest
import torch

from sheafprop.nn import (
    HarmonicExtension,
    SheafConv,
    SheafDiffusion,
    SheafPropagation,
    draw_sections,
)
from tests.sheaf_cases import NUM_NODES, NUM_RELATIONS, SHEAF_KINDS, make_case

EPS = torch.finfo(torch.float64).eps


def permuted(case, seed):
    """The case in another order, and the old number of each vertex."""
    g = torch.Generator().manual_seed(seed)
    node, relation = (torch.randperm(n, generator=g) for n in (NUM_NODES, NUM_RELATIONS))
    edge = torch.randperm(case.edge_type.numel(), generator=g)
    tables = {
        field.name: value[relation]
        for field in dataclasses.fields(case.sheaf)
        if isinstance(value := getattr(case.sheaf, field.name), torch.Tensor)
    }
    other = dataclasses.replace(
        case,
        edge_index=torch.argsort(node)[case.edge_index[:, edge]],
        edge_type=torch.argsort(relation)[case.edge_type[edge]],
        edge_weight=case.edge_weight[edge],
        boundary_mask=case.boundary_mask[node],
        x=case.x[node],
        sheaf=dataclasses.replace(case.sheaf, **tables),
    )
    return other, node


def call(layer, case, **more):
    known = {"edge_weight": case.edge_weight, "boundary_mask": case.boundary_mask}
    return layer(case.x, *case.graph, **known, **more)


def conditions(case):
    """Ratio and smallest of the positive eigenvalues of the blocks of M, and of one block alone."""
    plan = SheafConv().plan(
        case.x,
        *case.graph,
        edge_weight=case.edge_weight,
        boundary_mask=case.boundary_mask,
    )
    n, d = plan.num_free, case.x.shape[1]
    basis = torch.eye(d, dtype=plan.dtype).expand(n, d, d).contiguous()
    values = torch.linalg.eigvalsh(plan.apply_metric(basis))
    kept = values > 1e-10 * values[:, -1:]
    smallest = torch.where(kept, values, torch.inf).amin(dim=1)
    return float((values[:, -1] / smallest).max()), float(smallest.min()), float(values.max())


LAYERS = {
    "conv": (SheafConv(), 1),
    "propagation": (SheafPropagation(10), 10),
    "teleport": (SheafPropagation(5, teleport=0.2), 5),
    # Ten terms of a series, each a step.
    "diffusion": (SheafDiffusion(0.5), 40),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_steps_do_not_depend_on_the_order(kind, name):
    layer, steps = LAYERS[name]
    for seed in range(3):
        case = make_case(kind, seed)
        other, node = permuted(case, seed)
        expected = call(layer, case)
        error = float((call(layer, other) - expected[node]).abs().max())
        # A coordinate adds up at most 30 triples with two products of at most 4 terms each. A step
        # multiplies what is rounded by M^+ D, whose error is that times the condition of a block,
        # and is no longer than its argument in the M-norm, between which and coordinates lies the
        # square root of the whole range of M.
        ratio, low, high = conditions(case)
        size = max(float(case.x.abs().max()), float(expected.abs().max()))
        assert error <= steps * (30 + 8) * EPS * ratio * (high / low) ** 0.5 * size


@pytest.mark.parametrize("solver", ["cg", "chebyshev", "direct", "euler"])
@pytest.mark.parametrize("kind", SHEAF_KINDS)
def test_limits_do_not_depend_on_the_order(kind, solver):
    tol = 1e-6 if solver == "euler" else 1e-10
    layer = HarmonicExtension(solver, tol=tol, max_iterations=20_000)
    case = make_case(kind, 2, num_edges=60)
    other, node = permuted(case, 5)
    expected, result = call(layer, case, return_result=True)
    found, again = call(layer, other, return_result=True)
    assert result.converged
    assert again.converged
    # Both residuals are below the tolerance times the first one, whose square is twice the energy
    # at most (the spectrum ends at 2). The inverse multiplies them by 1 / lambda in the M-norm.
    _, low, _ = conditions(case)
    bound = 2 * tol * (2 * result.energy_before) ** 0.5 / result.spectrum.lower / low**0.5
    size = float(expected.abs().max())
    assert float((found - expected[node]).abs().max()) <= bound + 1e3 * EPS * size
    assert again.singular == result.singular
    assert again.frozen == result.frozen


@pytest.mark.parametrize("sections", [1, 3])
def test_random_starts_belong_to_the_label(sections):
    case = make_case("diagonal, unitary", 1)
    other, node = permuted(case, 9)
    keys = torch.arange(NUM_NODES) * 7919 + 3

    def draw(case, node_keys):
        x = case.x.unsqueeze(1).expand(-1, sections, -1)
        return draw_sections(x, case.boundary_mask, node_keys=node_keys, seed=4)

    first = draw(case, node_keys=keys)
    again = draw(other, node_keys=keys[node])
    # Scaled to the mean length of the known rows: a sum of at most 12 lengths of 6 squares.
    bound = (NUM_NODES + 6) * EPS * float(first.abs().max())
    assert float((again - first[node]).abs().max()) <= bound
