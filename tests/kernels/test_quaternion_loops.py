import pytest
import torch

from sheafprop.kernels.algebra import QUATERNIONS
from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.coupling import TypedEntries
from sheafprop.kernels.csr_product import Terms
from sheafprop.kernels.diagonal_coupling import DiagonalCoupling, label_sums, messages
from sheafprop.sheaf import QuaternionSheaf
from tests.kernels.cases import RELATIONS, make_entries, random, written_out

WIDTH = 8


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("sections", [1, 3])
def test_messages_are_products_of_matrices(backend, weighted, sections):
    entries = make_entries(weighted=weighted)
    table = random(RELATIONS, WIDTH, dtype=torch.float64, seed=7)
    x = random(entries.num_src, sections, WIDTH, dtype=torch.float64)
    into_tail = QuaternionSheaf(table).matrices("head")
    with use_backend(backend):
        out = DiagonalCoupling(entries, table, QUATERNIONS)(x)
    expected = written_out(entries, torch.stack([into_tail, into_tail.mT], 1), x)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("width", [1, WIDTH])
def test_a_step_is_one_pass(width):
    entries = make_entries(symmetric=True)
    table = random(RELATIONS, WIDTH, dtype=torch.float64, seed=7)
    x, constant = random(2, 11, 2, WIDTH, dtype=torch.float64)
    own, gain = random(2, 11, width, dtype=torch.float64, seed=4)
    arguments = (x, Terms((0.5, -0.75, 2.0), own, gain, constant))
    results = []
    for backend in ("numba", "torch"):
        with use_backend(backend):
            results.append(DiagonalCoupling(entries, table, QUATERNIONS).combine(*arguments))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_gradients_are_those_of_differences(backend, symmetric):
    entries = make_entries(symmetric=symmetric, num_edges=12)
    table = random(RELATIONS, 4, dtype=torch.float64, seed=7).requires_grad_()
    x = random(entries.num_src, 2, 4, dtype=torch.float64).requires_grad_()

    def run(x, table):
        return DiagonalCoupling(entries, table, QUATERNIONS)(x)

    with use_backend(backend):
        assert torch.autograd.gradcheck(run, (x, table))
        assert torch.autograd.gradgradcheck(run, (x, table))


def test_without_a_kernel_for_the_device_torch_runs():
    entries = make_entries()
    table, x = (random(n, 4, dtype=torch.float64) for n in (RELATIONS, entries.num_src))
    coupling = DiagonalCoupling(entries, table, QUATERNIONS)
    with use_backend("triton"):
        out = coupling(x.unsqueeze(1))
    torch.testing.assert_close(out, coupling(x.unsqueeze(1)))


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_sums_of_a_label_are_the_gradient_of_its_row(backend):
    entries = TypedEntries.from_coupling(make_entries(), RELATIONS)
    x = random(8, 2, WIDTH, dtype=torch.float64)
    g = random(11, 2, WIDTH, dtype=torch.float64, seed=1)
    table = random(2 * RELATIONS, WIDTH, dtype=torch.float64, seed=2)
    with use_backend(backend):
        found = label_sums(x, g, entries, 2 * RELATIONS, QUATERNIONS)
        paired = (g * messages(x, table, entries, QUATERNIONS)).sum()
    torch.testing.assert_close((found * table).sum(), paired)
    expected = torch.zeros_like(table)
    for v in range(11):
        for e in range(int(entries.start[v]), int(entries.start[v + 1])):
            source = QUATERNIONS.conjugate(x[int(entries.src[e])])
            product = QUATERNIONS.multiply(g[v], source).sum(0)
            expected[int(entries.label[e])] += entries.weight[e] * product
    torch.testing.assert_close(found, expected)
