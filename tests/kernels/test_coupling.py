import pytest
import torch

from sheafprop.kernels import coupling
from sheafprop.kernels.backend import use_backend
from sheafprop.kernels.coupling import EmptyCoupling, IdentityCoupling, TypedEntries, needs_gradient
from sheafprop.kernels.csr_product import Terms
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
        out = coupling.combine(x, Terms((0.25, -0.5, 3.0), own, gain, constant))
    expected = (0.25 - 0.5 * own.unsqueeze(1)) * x + 3 * gain.unsqueeze(1) * (received + constant)
    assert torch.allclose(out, expected, atol=1e-12)


def test_no_messages_leave_what_a_step_keeps():
    coupling, x = EmptyCoupling(4), random(4, 2, 3, dtype=torch.float64)
    assert torch.equal(coupling(x), torch.zeros_like(x))
    constant = random(4, 1, 3, dtype=torch.float64, seed=1)
    out = coupling.combine(x, Terms((1.0, 0.0, 0.5), constant=constant))
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
    constant = random(entries.num_dst, 2, WIDTH, dtype=dtype, seed=2)
    out = torch.zeros_like(x)
    terms = Terms((0.25, -0.5, 3.0), own, gain, constant)
    given = x, terms._replace(out=out)
    with use_backend("torch"):
        assert not coupling.combine_rows((0, 2), *given)
    with use_backend("numba"):
        whole = coupling.combine(x, terms)
        for rows in ((0, 2), (2, 2), (2, entries.num_dst)):
            assert coupling.combine_rows(rows, *given)
            assert torch.equal(out[: rows[1]], whole[: rows[1]])
            assert not out[rows[1] :].any()
    assert not EmptyCoupling(4).combine_rows((0, 2), *given)


def listed(dst, src, label, weight):
    weight = torch.ones(len(dst)) if weight is None else weight
    columns = (part.tolist() for part in (dst, src, label, weight))
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize("weighted", [True, False])
def test_entries_are_those_of_the_coupling_sorted(weighted):
    coupling = make_entries(weighted=weighted)
    entries = TypedEntries.from_coupling(coupling, RELATIONS)
    assert (entries.weight is None) == (not weighted)
    assert entries.num_dst == coupling.num_dst
    found = listed(entries.dst(), entries.src, entries.label, entries.weight)
    assert found == listed(coupling.dst, coupling.src, coupling.label, coupling.weight)
    order = list(zip(entries.dst().tolist(), entries.src.tolist(), strict=True))
    assert order == sorted(order)


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_adjoint_exchanges_both_ends(symmetric):
    entries = TypedEntries.from_coupling(make_entries(symmetric=symmetric), RELATIONS)
    table = random(2 * RELATIONS, 1, dtype=torch.float64)

    def dense(entries, table):
        out = torch.zeros(entries.num_dst, entries.num_src, dtype=torch.float64)
        value = table.flatten()[entries.label.long()] * entries.weight
        return out.index_put((entries.dst(), entries.src.long()), value, accumulate=True)

    adjoint, renamed = entries.adjoint(table)
    assert torch.allclose(dense(adjoint, renamed), dense(entries, table).T, atol=1e-13)


def test_pieces_hold_one_label_and_all_entries(monkeypatch):
    monkeypatch.setattr(coupling, "_PIECE", 4)
    entries = TypedEntries.from_coupling(make_entries(num_edges=70), RELATIONS)
    pieces = entries.pieces
    sizes = pieces.start.diff()
    assert int(sizes.max()) <= 4
    label = torch.repeat_interleave(pieces.label, sizes)
    found = listed(pieces.dst, pieces.src, label, pieces.weight)
    assert found == listed(entries.dst(), entries.src, entries.label, entries.weight)


@pytest.mark.parametrize("factors", [(0.25, -0.5, 3.0), (1.0, 0.0, 0.5), (0.0, 1.0, 1.0)], ids=str)
@pytest.mark.parametrize("own", [None, 1, WIDTH])
@pytest.mark.parametrize("gain", [None, 1, WIDTH])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_a_combination_that_needs_gradients_is_the_one_that_does_not(factors, own, gain, dtype):
    entries = make_entries(symmetric=True)
    table = random(RELATIONS, WIDTH, dtype=dtype, seed=4)
    coupling = DiagonalCoupling(entries, table)
    x = random(entries.num_src, 2, WIDTH, dtype=dtype).requires_grad_()
    own, gain = (
        None
        if width is None
        else random(entries.num_dst, width, dtype=torch.float64, seed=seed).requires_grad_()
        for seed, width in ((1, own), (2, gain))
    )
    constant = random(entries.num_dst, 1, WIDTH, dtype=dtype, seed=3).requires_grad_()

    def combine(*tensors):
        given = iter(tensors)
        chosen = [None if one is None else next(given) for one in (own, gain)]
        x, constant = given
        return coupling.combine(x, Terms(factors, *chosen, constant))

    tensors = [one for one in (own, gain, x, constant) if one is not None]
    found = combine(*tensors)
    with torch.no_grad(), use_backend("numba"):
        expected = combine(*tensors)
        kept = factors[0] + factors[1] * (1 if own is None else own.unsqueeze(1))
        sent = factors[2] * (1 if gain is None else gain.unsqueeze(1))
        written = kept * x + sent * (coupling(x) + constant)
    torch.testing.assert_close(found.detach(), expected)
    torch.testing.assert_close(expected, written)
    assert torch.autograd.gradcheck(combine, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(combine, tensors, fast_mode=True)


def test_real_features_of_complex_maps_are_combined_as_complex_ones():
    entries = make_entries(symmetric=True)
    coupling = DiagonalCoupling(entries, random(RELATIONS, WIDTH, dtype=torch.complex128, seed=4))
    x = random(entries.num_src, 2, WIDTH, dtype=torch.float64)
    own, gain = random(2, entries.num_dst, WIDTH, dtype=torch.float64, seed=1)
    terms = Terms((0.25, -0.5, 3.0), own, gain)
    found = coupling.combine(x.clone().requires_grad_(), terms)
    torch.testing.assert_close(found.detach(), coupling.combine(x.to(torch.complex128), terms))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_factors_of_another_precision_do_not_change_that_of_features(dtype):
    entries = make_entries(symmetric=True)
    coupling = DiagonalCoupling(entries, random(RELATIONS, WIDTH, dtype=dtype, seed=4))
    x = random(entries.num_src, 2, WIDTH, dtype=dtype)
    own, gain = random(2, entries.num_dst, WIDTH, dtype=torch.float64, seed=1)
    terms = Terms((0.25, -0.5, 3.0), own, gain)
    found = coupling.combine(x.clone().requires_grad_(), terms)
    assert found.dtype == dtype
    with use_backend("numba"):
        torch.testing.assert_close(found.detach(), coupling.combine(x, terms))


def test_combinations_compile():
    coupling, x = EmptyCoupling(4), random(4, 2, 3, dtype=torch.float64)
    own = random(4, 3, dtype=torch.float64, seed=1)
    terms = Terms((0.25, -0.5, 3.0), own, own, random(4, 1, 3, dtype=torch.float64, seed=2))
    compiled = torch.compile(coupling.combine, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, terms), coupling.combine(x, terms))
