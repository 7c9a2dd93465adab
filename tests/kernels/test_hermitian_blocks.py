"""Products with, inverses and norms of the blocks of vertices."""

import numpy as np
import pytest
import torch

from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.hermitian_blocks import definite_inverses, hermitian_norms, multiply_blocks
from tests.kernels.cases import random


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
