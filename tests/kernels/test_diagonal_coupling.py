import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sheafprop.kernels import csr_product, diagonal_coupling
from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.coupling import TypedEntries
from sheafprop.kernels.diagonal_coupling import DiagonalCoupling, label_sums, messages
from tests.kernels.cases import RELATIONS, WIDTH, make_entries, random, written_out

DTYPES = [torch.float64, torch.complex128]


def table_of(dtype):
    return random(RELATIONS, WIDTH, dtype=dtype, seed=7)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_messages_into_heads_take_the_conjugate(dtype, backend):
    entries, table = make_entries(), table_of(dtype)
    x = random(entries.num_src, 2, WIDTH, dtype=dtype)
    matrices = torch.diag_embed(torch.stack([table, table.conj()], 1))
    with use_backend(backend):
        out = DiagonalCoupling(entries, table)(x)
    assert torch.allclose(out, written_out(entries, matrices, x), atol=1e-12)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_a_label_are_the_gradient_of_its_row(dtype, backend):
    entries = TypedEntries.from_coupling(make_entries(), RELATIONS)
    x = random(8, 2, WIDTH, dtype=dtype)
    g = random(11, 2, WIDTH, dtype=dtype, seed=1)
    table = random(2 * RELATIONS, WIDTH, dtype=dtype, seed=2)
    expected = torch.zeros_like(table)
    start = entries.start.tolist()
    for v in range(11):
        for e in range(start[v], start[v + 1]):
            product = x[int(entries.src[e])].conj() * g[v]
            expected[int(entries.label[e])] += entries.weight[e] * product.sum(0)
    with use_backend(backend):
        assert torch.allclose(label_sums(x, g, entries, 2 * RELATIONS), expected, atol=1e-12)
        # <g, A x> is linear in the table.
        paired = (g.conj() * messages(x, table, entries)).sum()
    assert torch.allclose(paired, (expected.conj() * table).sum(), atol=1e-10)


class Wrong(TorchDispatchMode):
    """A device whose sums lose the last row where rows repeat."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "index_add" in str(function):
            return function(args[0], args[1], args[2][:-1], args[3][:-1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("sparse", [("cpu",), ()])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_right_sums_pass(sparse, backend, monkeypatch):
    monkeypatch.setattr(csr_product, "_SPARSE_DEVICES", sparse)
    with use_backend(backend):
        diagonal_coupling._compare_sums(torch.device("cpu"))


def test_wrong_sums_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(csr_product, "_SPARSE_DEVICES", ())
    with use_backend("torch"), Wrong(), pytest.raises(RuntimeError, match="device 'cpu'"):
        diagonal_coupling._compare_sums(torch.device("cpu"))


def test_a_device_is_checked_once_and_only_where_no_test_ran(monkeypatch):
    seen = []
    monkeypatch.setattr(diagonal_coupling, "_compare_sums", seen.append)
    diagonal_coupling._check.cache_clear()
    try:
        for name in ("mps", "cpu", "mps", "cuda", "meta", "xpu"):
            diagonal_coupling.check_device(torch.device(name))
    finally:
        diagonal_coupling._check.cache_clear()
    assert [device.type for device in seen] == ["mps", "xpu"]
