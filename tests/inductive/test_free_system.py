"""Systems of new entities, against a plain traversal and a dense build of their energy."""

import pytest
import torch

from sheafprop.inductive.free_system import FreeSystem, components
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf

#: Facts (head, tail) between free entities 0 to 5 and known ones 6 to 8.
EDGES = [(0, 1), (1, 6), (2, 2), (3, 4), (7, 4), (8, 6), (8, 5), (5, 7)]
N, FREE, D = 9, 6, 3


@pytest.fixture
def system():
    g = torch.Generator().manual_seed(0)
    edges = [edge for edge in EDGES if min(edge) < FREE]
    return FreeSystem(
        x=torch.randn(N, 2, D, generator=g, dtype=torch.float64),
        boundary_mask=torch.arange(N) >= FREE,
        edge_index=torch.tensor(edges).T,
        edge_type=torch.tensor([0, 2, 2, 0, 2, 0, 2][: len(edges)]),
        labels=[f"n{i}" for i in range(FREE)],
    )


def groups(system):
    """Groups of free entities that facts connect, by spreading from each."""
    edges = [e for e in system.edge_index.T.tolist() if max(e) < FREE]
    out = []
    for start in range(FREE):
        group = {start}
        while more := {b for e in edges for a, b in (e, e[::-1]) if a in group} - group:
            group |= more
        out.append(group)
    return out


def test_components_are_those_of_a_traversal(system):
    component, anchored = components(system)
    found = groups(system)
    for i in range(FREE):
        same = (component[:FREE] == component[i]).nonzero().flatten().tolist()
        assert set(same) == found[i]
        facts = system.edge_index.T.tolist()
        reached = any({a, b} & found[i] and max(a, b) >= FREE for a, b in facts)
        assert bool(anchored[i]) is reached
    assert not anchored[FREE:].any()
    _, few = components(system, torch.arange(N) == 7)
    assert few.tolist() == [False, False, False, True, True, True, False, False, False]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_batches_are_independent_parts_of_all_facts(system, size):
    seen, facts = [], 0
    for position, part in system.batches(size):
        assert part.labels == [f"n{i}" for i in position.tolist()]
        assert len(part.labels) == int((~part.boundary_mask).sum())
        for i in position.tolist():
            assert groups(system)[i] <= set(position.tolist())
        seen += position.tolist()
        facts += len(part.edge_type)
    assert sorted(seen) == list(range(FREE))
    assert facts == len(system.edge_type)


def test_a_part_keeps_facts_vectors_and_labels(system):
    free = torch.zeros(N, dtype=torch.bool)
    free[[3, 4]] = True
    part = system.part(free)
    assert part.labels == ["n3", "n4"]
    kept = torch.tensor([3, 4, 7])
    assert torch.equal(part.x, system.x[kept])
    assert kept[part.edge_index].T.tolist() == [[3, 4], [7, 4]]
    assert part.edge_type.tolist() == [0, 2]
    assert part.boundary_mask.tolist() == [False, False, True]


def sheaf_of(kind):
    g = torch.Generator().manual_seed(1)
    if kind == "none":
        return IdentitySheaf(None, relations=3)
    if kind == "identity":
        return IdentitySheaf(torch.randn(3, D, generator=g))
    if kind == "diagonal":
        return DiagonalSheaf(*torch.randn(2, 3, D, generator=g), torch.randn(3, D, generator=g))
    head, tail = torch.randn(2, 3, D, D, generator=g)
    return DenseSheaf(tail if kind == "shared" else head, tail, torch.randn(3, D, generator=g))


@pytest.mark.parametrize("kind", ["none", "identity", "diagonal", "dense", "shared"])
def test_a_plan_is_the_gradient_of_the_dense_energy_in_double_precision(system, kind):
    sheaf = sheaf_of(kind)
    plan = system.plan(sheaf)
    assert plan.dtype == torch.float64
    matrices = {
        (r, side): sheaf.restriction_map(r, side, D).double() for r in range(3)
        for side in ("head", "tail")
    }  # fmt: skip
    free = system.x[:FREE].clone().requires_grad_()
    x = torch.cat([free, system.x[FREE:]])
    energy = 0.0
    for (head, tail), r in zip(
        system.edge_index.T.tolist(), system.edge_type.tolist(), strict=True
    ):
        b = sheaf.translation_of(torch.tensor([r]))
        rest = x[tail] @ matrices[r, "tail"].T - x[head] @ matrices[r, "head"].T
        energy = energy + (rest - (0 if b is None else b.double())).square().sum()
    (gradient,) = torch.autograd.grad(energy / 2, free)
    found = plan.gradient(system.x[plan.free_index], plan.constant(system.x))
    torch.testing.assert_close(found, gradient)
