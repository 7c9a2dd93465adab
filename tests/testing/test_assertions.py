"""The assertions pass what is right and fail what is wrong."""

import pytest
import torch

from sheafprop.nn import HarmonicExtension, SheafConv, SheafPropagation
from sheafprop.sheaf import DiagonalSheaf, IdentitySheaf, coboundary, coboundary_adjoint
from sheafprop.testing import (
    Multigraph,
    assert_adjoint,
    assert_equals_dense,
    assert_gauge_equivariant,
    assert_permutation_equivariant,
    assert_psd,
    assert_spectrum_within,
    operator_matrix,
)
from tests.sheaf_cases import WIDTH, make_sheaf

C, D = torch.complex128, torch.float64


def matrix(*rows):
    return torch.tensor(rows, dtype=C)


def apply(a):
    return lambda x: a @ x


def test_operators_are_written_out():
    a = matrix([1, 2j, 0], [0, 3, 1j])
    assert torch.equal(operator_matrix(apply(a), (3,), C), a)
    assert operator_matrix(lambda x: x, (0, 4), D).shape == (0, 0)


def test_adjoint():
    a = matrix([1, 2j], [0, 3 + 1j], [1, 1])
    assert_adjoint(apply(a), apply(a.mH), (2,), C)
    with pytest.raises(AssertionError, match="not the adjoint"):
        assert_adjoint(apply(a), apply(a.mT), (2,), C)
    with pytest.raises(AssertionError, match="not the adjoint"):
        assert_adjoint(apply(a), apply(a.mH * (1 + 1e-6)), (2,), C)
    assert_adjoint(apply(0 * a), apply(0 * a.mH), (2,), C)


def test_adjoint_without_the_conjugate_of_a_sheaf():
    graph, sheaf = Multigraph.random(4), make_sheaf("diagonal, unitary")

    def delta(sheaf):
        return lambda x: coboundary(x, graph.edge_index, graph.edge_type, sheaf)

    def adjoint(sheaf):
        return lambda y: coboundary_adjoint(y, graph.edge_index, graph.edge_type, sheaf, 12)

    assert_adjoint(delta(sheaf), adjoint(sheaf), (12, WIDTH), C)
    conjugated = DiagonalSheaf(sheaf.head.conj().resolve_conj())
    with pytest.raises(AssertionError, match="not the adjoint"):
        assert_adjoint(delta(sheaf), adjoint(conjugated), (12, WIDTH), C)


def test_psd():
    assert_psd(apply(matrix([2, 1j], [-1j, 2])), (2,), C)
    assert_psd(matrix([1, 1], [1, 1]), (2,), C)
    with pytest.raises(AssertionError, match="not Hermitian"):
        assert_psd(apply(matrix([2, 1j], [1j, 2])), (2,), C)
    with pytest.raises(AssertionError, match=r"eigenvalue -1"):
        assert_psd(matrix([1, 2], [2, 1]), (2,), C)
    with pytest.raises(AssertionError, match="not square"):
        assert_psd(matrix([1, 2]), (2,), C)


def test_spectrum():
    assert_spectrum_within(matrix([1, 1], [1, 1]), (2,), C)
    with pytest.raises(AssertionError, match=r"eigenvalue 3 above 2"):
        assert_spectrum_within(matrix([2, 1], [1, 2]), (2,), C)
    with pytest.raises(AssertionError, match=r"eigenvalue 1 below 1.5"):
        assert_spectrum_within(matrix([2, 1], [1, 2]), (2,), C, low=1.5, high=4)
    with pytest.raises(AssertionError, match="not Hermitian"):
        assert_spectrum_within(matrix([1, 1], [0, 1]), (2,), C)


def test_equality_with_a_matrix():
    a = matrix([1, 2j], [0, 3])
    assert_equals_dense(apply(a), a, (2,))
    with pytest.raises(AssertionError, match=r"differs .* row 1, column 0"):
        assert_equals_dense(apply(a + matrix([0, 0], [1e-3, 0])), a, (2,))
    with pytest.raises(AssertionError, match=r"operator is \[2, 2\], the matrix \[1, 2\]"):
        assert_equals_dense(apply(a), a[:1], (2,))


@pytest.mark.parametrize("kind", ["identity", "diagonal, unitary", "dense, shared"])
def test_layers_are_equivariant(kind):
    sheaf = make_sheaf(kind)
    graph = Multigraph.random(4, num_edges=50)
    x = graph.features(sheaf, WIDTH)
    for layer in (SheafConv(), SheafPropagation(4, teleport=0.2), HarmonicExtension(tol=1e-12)):
        assert_gauge_equivariant(layer, graph, sheaf, x, atol=1e-6)
        assert_permutation_equivariant(layer, graph, sheaf, x, atol=1e-6)


def test_layers_that_see_the_basis_or_the_order_fail():
    sheaf = IdentitySheaf(torch.ones(2, WIDTH, dtype=D))
    graph = Multigraph.random(2)
    x = graph.features(sheaf, WIDTH)
    conv = SheafConv()

    def rectified(x, *args, **kwargs):
        return conv(x, *args, **kwargs).relu()

    def counted(x, *args, **kwargs):
        return conv(x, *args, **kwargs) + torch.arange(12.0, dtype=D).unsqueeze(1)

    def first_edge_only(x, edge_index, edge_type, sheaf, *, edge_weight, boundary_mask):
        return conv(x, edge_index[:, :1], edge_type[:1], sheaf, boundary_mask=boundary_mask)

    with pytest.raises(AssertionError, match="other bases"):
        assert_gauge_equivariant(rectified, graph, sheaf, x)
    assert_permutation_equivariant(rectified, graph, sheaf, x)
    with pytest.raises(AssertionError, match="another order"):
        assert_permutation_equivariant(counted, graph, sheaf, x)
    with pytest.raises(AssertionError, match="another order"):
        assert_permutation_equivariant(first_edge_only, graph, sheaf, x)
