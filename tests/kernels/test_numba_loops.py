"""Every implementation of every loop against sums written out entry by entry."""

import os

import pytest
import torch

from sheafprop.kernels.backend import numba_loops, triton_loops, use_backend
from sheafprop.kernels.coupling import IdentityCoupling
from sheafprop.kernels.csr_product import Terms
from sheafprop.kernels.diagonal_coupling import DiagonalCoupling
from tests.kernels.cases import RELATIONS, WIDTH, make_entries, random, written_out

# The interpreter must be chosen before Triton is imported: test_triton_loops.py runs these tests
# with it in a process of its own.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and triton_loops() is not None
BACKENDS = [
    "torch",
    pytest.param("numba", marks=pytest.mark.skipif(numba_loops() is None, reason="needs numba")),
    pytest.param(
        "triton", marks=pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
    ),
]
DTYPES = [torch.float64, torch.complex128, torch.float32, torch.complex64]


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request):
    with use_backend(request.param):
        yield request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


def tolerance(dtype):
    return dict(atol=1e-12) if torch.finfo(dtype).bits == 64 else dict(atol=2e-5, rtol=1e-5)


def coupling_of(kind, entries, dtype):
    """A coupling, and the matrices ``[R, 2, d, d]`` it stands for."""
    if kind == "identity":
        eye = torch.eye(WIDTH).expand(RELATIONS, 2, WIDTH, WIDTH)
        return IdentityCoupling(entries), eye
    table = random(RELATIONS, WIDTH, dtype=dtype, seed=7)
    return DiagonalCoupling(entries, table), torch.diag_embed(torch.stack([table, table.conj()], 1))


@pytest.mark.parametrize("kind", ["identity", "diagonal"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("sections", [1, 3])
def test_messages_equal_the_written_sum(kind, weighted, sections, dtype):
    entries = make_entries(weighted=weighted)
    coupling, matrices = coupling_of(kind, entries, dtype)
    x = random(entries.num_src, sections, WIDTH, dtype=dtype, seed=1)
    expected = written_out(entries, matrices, x)
    assert torch.allclose(coupling(x), expected, **tolerance(dtype))
    assert (expected[-1] == 0).all()


@pytest.mark.parametrize("kind", ["identity", "diagonal"])
@pytest.mark.parametrize("own_width", [None, 1, WIDTH])
@pytest.mark.parametrize("gain_width", [None, 1, WIDTH])
@pytest.mark.parametrize("constant_sections", [None, 1, 2])
def test_combination_in_one_pass(kind, own_width, gain_width, constant_sections, dtype):
    if kind == "identity" and WIDTH in (own_width, gain_width):
        pytest.skip("the blocks of identity maps are multiples of the identity")
    entries = make_entries(3, symmetric=True, num_edges=20)
    coupling, matrices = coupling_of(kind, entries, dtype)
    n, real = entries.num_dst, torch.zeros((), dtype=dtype).real.dtype
    x = random(n, 2, WIDTH, dtype=dtype, seed=1)
    own = None if own_width is None else random(n, own_width, dtype=real, seed=2)
    gain = None if gain_width is None else random(n, gain_width, dtype=real, seed=3)
    constant = None
    expected = written_out(entries, matrices, x)
    if constant_sections:
        constant = random(n, constant_sections, WIDTH, dtype=dtype, seed=4)
        expected = expected + constant
    if gain is not None:
        expected = expected * gain.unsqueeze(1)
    scale = 1.0 if own is None else own.unsqueeze(1)
    expected = (0.25 - 0.5 * scale) * x + 3 * expected
    out = torch.full_like(x, float("nan"))
    for target in (None, out):
        ours = coupling.combine(x, Terms((0.25, -0.5, 3), own, gain, constant, target))
        assert ours.dtype == dtype
        assert torch.allclose(ours, expected, **tolerance(dtype))


def test_gradients_of_any_order(dtype, backend):
    if torch.finfo(dtype).bits == 32:
        pytest.skip("differences need double precision")
    if backend == "triton":
        pytest.skip("the interpreter is too slow for differences; compared with torch below")
    for symmetric in (True, False):
        entries = make_entries(5, symmetric=symmetric, num_edges=14)
        x = random(entries.num_src, 2, WIDTH, dtype=dtype).requires_grad_()
        table = random(RELATIONS, WIDTH, dtype=dtype, seed=2).requires_grad_()

        def messages(x, table, entries=entries):
            return DiagonalCoupling(entries, table)(x)

        assert torch.autograd.gradcheck(messages, (x, table))
        assert torch.autograd.gradgradcheck(messages, (x, table), fast_mode=True)
        assert torch.autograd.gradcheck(IdentityCoupling(entries), (x,))
        assert torch.autograd.gradgradcheck(IdentityCoupling(entries), (x,), fast_mode=True)


@pytest.mark.parametrize("symmetric", [True, False])
def test_gradients_equal_those_of_torch(symmetric, dtype):
    entries = make_entries(5, symmetric=symmetric, num_edges=14)

    def gradients():
        x = random(entries.num_src, 2, WIDTH, dtype=dtype).requires_grad_()
        table = random(RELATIONS, WIDTH, dtype=dtype, seed=2).requires_grad_()
        y = DiagonalCoupling(entries, table)(x)
        first = torch.autograd.grad((y * y.conj()).real.sum(), (x, table), create_graph=True)
        second = torch.autograd.grad(sum((g * g.conj()).real.sum() for g in first), (x, table))
        return *first, *second

    ours = gradients()
    with use_backend("torch"):
        expected = gradients()
    for a, b in zip(ours, expected, strict=True):
        scale = float(b.detach().abs().max())
        assert torch.allclose(a / scale, b / scale, **tolerance(dtype))


def test_gradients_stay_in_the_compiled_loops(backend, monkeypatch):
    """No gather of messages on the way, forward or backward."""
    import sheafprop.kernels.diagonal_coupling as module

    called = []
    for name in ("reference_messages", "_reference_label_sums"):
        original = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda *a, original=original, name=name: called.append(name) or original(*a),
        )
    entries = make_entries(1)
    x = random(entries.num_src, 1, WIDTH, dtype=torch.float32).requires_grad_()
    table = random(RELATIONS, WIDTH, dtype=torch.float32).requires_grad_()
    DiagonalCoupling(entries, table)(x).square().sum().backward()
    assert bool(called) == (backend == "torch")
    assert x.grad.abs().sum() > 0
    assert table.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["identity", "diagonal"])
def test_nothing_to_add(kind, dtype):
    entries = make_entries(num_edges=8)
    empty = type(entries)(
        *(t[:0] for t in (entries.dst, entries.src, entries.label, entries.weight)), 4, 3
    )
    coupling, _ = coupling_of(kind, empty, dtype)
    assert torch.equal(
        coupling(torch.ones(3, 2, WIDTH, dtype=dtype)), torch.zeros(4, 2, WIDTH, dtype=dtype)
    )
    x = torch.ones(3, 2, WIDTH, dtype=dtype, requires_grad=True)
    coupling(x).abs().sum().backward()
    assert (x.grad == 0).all()
    for num_dst, num_src in ((0, 3), (4, 0)):
        none = type(entries)(empty.dst, empty.src, empty.label, empty.weight, num_dst, num_src)
        coupling, _ = coupling_of(kind, none, dtype)
        out = coupling(torch.ones(num_src, 1, WIDTH, dtype=dtype))
        assert torch.equal(out, torch.zeros(num_dst, 1, WIDTH, dtype=dtype))
    coupling, _ = coupling_of(kind, make_entries(), dtype)
    assert (
        coupling(torch.ones(8, 1, 0 if kind == "identity" else WIDTH, dtype=dtype)).shape[0] == 11
    )


def test_lazy_conjugates_and_strided_features_are_read_right():
    entries = make_entries(2)
    coupling, matrices = coupling_of("diagonal", entries, torch.complex128)
    x = random(WIDTH, 1, entries.num_src, dtype=torch.complex128).conj().transpose(0, 2)
    assert torch.allclose(coupling(x), written_out(entries, matrices, x.resolve_conj()), atol=1e-12)
