"""Messages of dense maps, and products with the blocks of vertices."""

import logging

import pytest
import torch

from sheafprop.kernels import memory
from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.block_product import multiply_blocks
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
            (torch.rand(num_edges, generator=g) ** 3 * RELATIONS).long(),
            entries.backward,
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
