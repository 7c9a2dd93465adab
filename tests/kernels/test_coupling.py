import pytest
import torch

from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.coupling import EmptyCoupling, IdentityCoupling, needs_gradient
from sheafprop.kernels.diagonal_coupling import DiagonalCoupling
from tests.kernels.cases import RELATIONS, WIDTH, make_entries, random, written_out


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_messages_of_identity_maps_and_their_combination(dtype, backend):
    entries = make_entries(symmetric=True)
    eye = torch.eye(WIDTH, dtype=dtype).expand(RELATIONS, 2, WIDTH, WIDTH)
    x = random(entries.num_src, 2, WIDTH, dtype=dtype)
    own, gain = random(2, entries.num_dst, 1, dtype=torch.float64, seed=1)
    constant = random(entries.num_dst, 1, WIDTH, dtype=dtype, seed=2)
    received = written_out(entries, eye, x)
    with use_backend(backend):
        coupling = IdentityCoupling(entries)
        assert torch.allclose(coupling(x), received, atol=1e-12)
        out = coupling.combine(x, (0.25, -0.5, 3.0), own, gain, constant)
    expected = (0.25 - 0.5 * own.unsqueeze(1)) * x + 3 * gain.unsqueeze(1) * (received + constant)
    assert torch.allclose(out, expected, atol=1e-12)


def test_no_messages_leave_what_a_step_keeps():
    coupling, x = EmptyCoupling(4), random(4, 2, 3, dtype=torch.float64)
    assert torch.equal(coupling(x), torch.zeros_like(x))
    constant = random(4, 1, 3, dtype=torch.float64, seed=1)
    out = coupling.combine(x, (1.0, 0.0, 0.5), constant=constant)
    assert torch.allclose(out, x + 0.5 * constant, atol=1e-14)


def test_gradients_are_needed_only_where_they_are_recorded():
    wanting = torch.ones(2, requires_grad=True)
    assert needs_gradient(None, torch.ones(2), wanting)
    assert not needs_gradient(None, torch.ones(2))
    with torch.no_grad():
        assert not needs_gradient(wanting)


@pytest.mark.parametrize("kind", ["identity", "real", "complex"])
def test_some_rows_alone_are_those_of_all(kind):
    dtype = torch.complex128 if kind == "complex" else torch.float64
    entries = make_entries(symmetric=True)
    table = random(RELATIONS, WIDTH, dtype=dtype, seed=4)
    coupling = IdentityCoupling(entries) if kind == "identity" else DiagonalCoupling(entries, table)
    x = random(entries.num_src, 2, WIDTH, dtype=dtype)
    own, gain = random(2, entries.num_dst, 1, dtype=torch.float64, seed=1)
    given = x, (0.25, -0.5, 3.0), own, gain, random(entries.num_dst, 2, WIDTH, dtype=dtype, seed=2)
    out = torch.zeros_like(x)
    with use_backend("torch"):
        assert not coupling.combine_rows((0, 2), *given, out)
    with use_backend("numba"):
        whole = coupling.combine(*given)
        for rows in ((0, 2), (2, 2), (2, entries.num_dst)):
            assert coupling.combine_rows(rows, *given, out)
            assert torch.equal(out[: rows[1]], whole[: rows[1]])
            assert not out[rows[1] :].any()
    assert not EmptyCoupling(4).combine_rows((0, 2), *given, out)
