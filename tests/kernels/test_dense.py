"""Messages of dense maps, and products with the blocks of vertices."""

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from sheafprop.kernels import memory
from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.block_product import multiply_blocks
from sheafprop.kernels.csr_product import CSRProduct
from sheafprop.kernels.definite_inverse import definite_inverses, hermitian_norms
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


def test_some_rows_of_a_product():
    g = torch.Generator().manual_seed(0)
    row, col = torch.randint(6, (40,), generator=g), torch.randint(5, (40,), generator=g)
    product = CSRProduct(row, col, random(40, dtype=torch.float64), 7, 5)
    table = random(5, 3, 2, dtype=torch.float64, seed=1)
    for index in ([2, 0, 6, 6, 5], [], [6]):
        index = torch.tensor(index, dtype=torch.long)
        assert torch.allclose(product.rows(index)(table), product(table)[index], atol=1e-13)
        transposed = product.rows(index).transposed()(random(len(index), 2, dtype=torch.float64))
        assert transposed.shape == (5, 2)


def _spectrum(kind: str, width: int, condition: float) -> torch.Tensor:
    if kind == "even":
        return torch.logspace(0, -float(torch.log10(torch.tensor(condition))), width).double()
    values = torch.ones(width, dtype=torch.float64)
    values[1:] = 1 if kind == "one small" else 1 / condition
    values[-1] = 1 / condition
    return values


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("width", [1, 2, 4, 5, 11, 32, 70, 131])
def test_inverses_of_definite_blocks(width, dtype, backend):
    condition = 1e3 if dtype == torch.float32 else 1e8
    double = torch.promote_types(dtype, torch.float64)
    for number, kind in enumerate(("even", "one small", "one large")):
        basis, _ = torch.linalg.qr(random(9, width, width, dtype=double, seed=number))
        values = _spectrum(kind, width, condition)
        blocks = ((basis * values) @ basis.mH).to(dtype)
        out = torch.empty_like(blocks)
        with use_backend(backend):
            inverse, definite = definite_inverses(blocks, out)
        assert inverse is out
        assert bool(definite.all())
        expected = torch.linalg.inv(blocks.to(double))
        error = torch.linalg.matrix_norm(inverse.to(double) - expected)
        # No worse than LAPACK, whose error grows with the condition number.
        limit = 20 * condition * torch.finfo(dtype).eps
        assert bool((error < limit * torch.linalg.matrix_norm(expected)).all())


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_blocks_that_are_not_definite(backend):
    good = torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double()
    bad = [[[1, 2], [2, 1]], [[0, 0], [0, 0]], [[-1, 0], [0, -1]], [[float("nan"), 0], [0, 1]]]
    blocks = torch.stack([good, *torch.tensor(bad).double(), good])
    with use_backend(backend):
        inverse, definite = definite_inverses(blocks)
    assert definite.tolist() == [True, False, False, False, False, True]
    assert torch.allclose(inverse[[0, -1]] @ good, torch.eye(2).double())
    assert definite_inverses(blocks[:0])[0].shape == (0, 2, 2)


@pytest.mark.parametrize("size", [1, 64, 129, 200, 301])
def test_inverses_take_the_place_of_their_blocks(size):
    rows = random(5, size, size + 3, dtype=torch.float64)
    blocks = rows @ rows.mT
    # The last of them turns indefinite at its last pivot.
    blocks[-1, -1, -1] = -1
    # Not torch.linalg.inv: on several threads its LU factorisation may hang at this size (oneMKL).
    expected = torch.from_numpy(np.linalg.inv(blocks[:-1].numpy()))
    inverse, definite = definite_inverses(blocks, blocks)
    assert inverse is blocks
    assert definite.tolist() == [True] * 4 + [False]
    torch.testing.assert_close(inverse[:-1], expected)


@pytest.mark.parametrize("size", [1, 6, 64, 131])
def test_upper_triangles_are_enough(size):
    # The loop reads no more; plain torch operations are given whole blocks.
    with use_backend("numba"):
        rows = random(3, size, size + 3, dtype=torch.float64)
        blocks = rows @ rows.mT
        upper = blocks.where(torch.ones(size, size).triu().bool(), float("nan"))
        torch.testing.assert_close(hermitian_norms(upper), torch.linalg.matrix_norm(blocks))
        inverse, definite = definite_inverses(upper, upper)
        assert bool(definite.all())
        torch.testing.assert_close(inverse, torch.from_numpy(np.linalg.inv(blocks.numpy())))


def test_shared_maps_take_fewer_products():
    entries = make_entries(symmetric=True)
    maps = random(RELATIONS, 4, WIDTH, dtype=torch.float64)
    shared = DenseCoupling(entries, maps, maps).map_products
    assert shared < DenseCoupling(entries, maps, maps.clone()).map_products


@pytest.mark.parametrize("width", [1, 3, 4, 10])
@pytest.mark.parametrize("sections", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_blocks_times_features(width, sections, dtype):
    half = random(4, width, width, dtype=dtype)
    blocks, kind = half @ half.mH, torch.tensor([3, 0, 1, 0, 2, 2, 0])
    x = random(7, sections, width, dtype=dtype, seed=1)
    expected = torch.einsum("nij,nsj->nsi", blocks[kind], x)
    for backend in ("numba", "torch"):
        with use_backend(backend):
            assert torch.allclose(multiply_blocks(blocks, kind, x), expected, atol=1e-12)
    assert multiply_blocks(blocks[:0], kind[:0], x[:0]).shape == (0, sections, width)
    inputs = (blocks.requires_grad_(), x.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda b, f: multiply_blocks(b, kind, f), inputs, fast_mode=True
    )


def test_large_allocations_are_announced(caplog):
    with caplog.at_level(logging.WARNING, "sheafprop"):
        memory.announce(10**9, "little")
        assert not caplog.records
        memory.announce(2_500_000_000, "the diagonal blocks")
    assert "2.5 GB for the diagonal blocks" in caplog.text


def test_huge_pages_hold_ordinary_tensors():
    like = torch.zeros(1, dtype=torch.float64)
    large = memory.empty((2**20, 2), like)
    assert large.dtype == like.dtype
    assert large.is_contiguous()
    assert torch.equal(large.fill_(3), torch.full((2**20, 2), 3.0, dtype=torch.float64))
