"""Messages of dense maps."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sheafprop.kernels.dense_coupling import DenseCoupling
from tests.kernels.cases import RELATIONS, WIDTH, make_entries, random, written_out


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("num_edges", [4, 60, 3000])
def test_messages_equal_the_written_sum(shared, dtype, num_edges):
    # With 3000 edges, maps have more rows than one group of a batched product holds.
    entries = make_entries(num_edges=num_edges)
    if num_edges == 3000:
        g = torch.Generator().manual_seed(1)
        entries = type(entries)(
            torch.randint(900, (num_edges,), generator=g),
            torch.randint(1200, (num_edges,), generator=g),
            (torch.rand(num_edges, generator=g) ** 3 * 2 * RELATIONS).long(),
            entries.weight,
            900,
            1200,
        )
    head = random(RELATIONS, 4, WIDTH, dtype=dtype, seed=5)
    tail = head if shared else random(RELATIONS, 4, WIDTH, dtype=dtype, seed=6)
    # Into the tail: R_t* R_h; into the head: R_h* R_t.
    matrices = torch.stack([tail.mH @ head, head.mH @ tail], 1)
    x = random(entries.num_src, 2, WIDTH, dtype=dtype, seed=1)
    coupling = DenseCoupling(entries, head, tail)
    expected = written_out(entries, matrices, x)
    assert torch.allclose(coupling(x), expected, atol=1e-11)
    recorded = coupling(x.clone().requires_grad_())
    assert torch.allclose(recorded, expected, atol=1e-11)


def test_messages_are_the_same_on_any_number_of_threads():
    g = torch.Generator().manual_seed(2)
    entries = make_entries(num_edges=5000)
    entries = type(entries)(
        *(torch.randint(size, (5000,), generator=g) for size in (900, 1200, 2 * RELATIONS)),
        torch.rand(5000, generator=g).to(entries.weight.dtype),
        900,
        1200,
    )
    maps = random(RELATIONS, 24, 24, dtype=torch.float64)
    x = random(1200, 3, 24, dtype=torch.float64, seed=1)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(DenseCoupling(entries, maps, maps.flip(0))(x))
    finally:
        torch.set_num_threads(before)
    # Pieces do not depend on threads, but libraries may add up otherwise on one thread.
    assert torch.allclose(found[0], found[1], atol=1e-11)
    assert torch.equal(found[1], found[2])


def test_memory_that_is_used_again_holds_no_results():
    entries = make_entries(num_edges=200)
    maps = random(RELATIONS, 7, WIDTH, dtype=torch.float64)
    narrow = random(RELATIONS, 2, WIDTH, dtype=torch.float64, seed=1)
    for head in (maps, narrow):
        coupling = DenseCoupling(entries, head, head.flip(0))
        matrices = torch.stack([head.flip(0).mH @ head, head.mH @ head.flip(0)], 1)
        inputs = [random(entries.num_src, 1 + i % 3, WIDTH, dtype=torch.float64, seed=i)
                  for i in range(40)]  # fmt: skip
        expected = [written_out(entries, matrices, x) for x in inputs]
        one_by_one = [coupling(x) for x in inputs]
        with ThreadPoolExecutor(4) as pool:
            at_once = list(pool.map(coupling, inputs))
        for i, x in enumerate(expected):
            assert torch.allclose(one_by_one[i], x, atol=1e-11)
            assert torch.allclose(at_once[i], x, atol=1e-11)


def test_many_rows_of_one_map_are_mapped_in_pieces(monkeypatch):
    monkeypatch.setattr("sheafprop.kernels.dense_coupling._GATHERED_BYTES", 1000)
    entries = make_entries(num_edges=300)
    maps = random(RELATIONS, 4, WIDTH, dtype=torch.float64)
    x = random(entries.num_src, 2, WIDTH, dtype=torch.float64, seed=1)
    expected = written_out(entries, torch.stack([maps.mH @ maps] * 2, 1), x)
    assert torch.allclose(DenseCoupling(entries, maps, maps)(x), expected, atol=1e-11)


def test_shared_maps_take_fewer_products():
    entries = make_entries(symmetric=True)
    maps = random(RELATIONS, 4, WIDTH, dtype=torch.float64)
    shared = DenseCoupling(entries, maps, maps).map_products
    assert shared < DenseCoupling(entries, maps, maps.clone()).map_products
