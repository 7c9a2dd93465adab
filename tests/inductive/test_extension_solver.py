import pytest
import torch

from sheafprop.inductive.extension_solver import solve_lone_blocks
from sheafprop.inductive.free_system import FreeSystem
from sheafprop.sheaf import DenseSheaf


def system_of(num_free: int, num_facts: int, size: int, sections: int, dtype: torch.dtype):
    """Free entities 0, 1, ... whose facts lead to known ones, in either direction."""
    g = torch.Generator().manual_seed(num_facts)
    num_nodes = num_free + 7
    free = torch.arange(num_facts) % num_free
    known = torch.randint(num_free, num_nodes, (num_facts,), generator=g)
    into_tail = torch.rand(num_facts, generator=g) < 0.5
    edge_index = torch.stack(
        [torch.where(into_tail, known, free), torch.where(into_tail, free, known)]
    )
    x = torch.randn(num_nodes, sections, size, generator=g, dtype=dtype)
    return FreeSystem(
        x=x,
        boundary_mask=torch.arange(num_nodes) >= num_free,
        edge_index=edge_index,
        edge_type=torch.randint(3, (num_facts,), generator=g),
        labels=[str(i) for i in range(num_free)],
    )


def sheaf_of(kind: str, k: int, d: int, translated: bool, dtype: torch.dtype) -> DenseSheaf:
    g = torch.Generator().manual_seed(1)
    head, tail = torch.randn(2, 3, k, d, generator=g, dtype=dtype)
    shift = torch.randn(3, k, generator=g, dtype=dtype) if translated else None
    return DenseSheaf(tail if kind == "shared" else head, tail, shift)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("translated", [True, False])
@pytest.mark.parametrize("kind", ["shared", "pair"])
@pytest.mark.parametrize("k", [4, 6])
def test_equals_the_solution_of_a_plan(kind: str, k: int, translated: bool, dtype: torch.dtype):
    system, sheaf = system_of(3, 17, 4, 2, dtype), sheaf_of(kind, k, 4, translated, dtype)
    vectors = solve_lone_blocks(system, sheaf)
    plan = system.plan(sheaf)
    assert vectors is not None
    torch.testing.assert_close(vectors, plan.precondition(plan.constant(system.x)))


def test_blocks_close_to_singular_and_many_facts_are_left_to_a_plan():
    system, sheaf = (
        system_of(2, 9, 4, 1, torch.float64),
        sheaf_of("pair", 4, 4, True, torch.float64),
    )
    flat = sheaf.head.clone()
    flat[..., 0] *= 1e-7
    assert solve_lone_blocks(system, DenseSheaf(flat, flat)) is None
    flat[..., 0] = 0.0
    assert solve_lone_blocks(system, DenseSheaf(flat, flat)) is None
    assert solve_lone_blocks(system_of(2, 70_000, 4, 1, torch.float64), sheaf) is None
