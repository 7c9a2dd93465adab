"""Random scores, and the comparison of a loss with a reference."""

import torch


def scores(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    value = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return value.requires_grad_()


def assert_same(ours, reference, *inputs):
    torch.testing.assert_close(ours, reference)
    for a, b in zip(
        torch.autograd.grad(ours, inputs), torch.autograd.grad(reference, inputs), strict=True
    ):
        torch.testing.assert_close(a, b)
