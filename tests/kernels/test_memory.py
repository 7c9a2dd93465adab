import logging

import torch

from sheafprop.kernels import memory


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
