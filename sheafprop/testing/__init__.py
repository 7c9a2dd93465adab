"""Property tests of sheaves, operators and layers, for use in test suites.

The assertions take operators as functions; :class:`SheafTestCase` applies all of them to a sheaf.
"""

from sheafprop.testing.assertions import (
    assert_adjoint,
    assert_equals_dense,
    assert_gauge_equivariant,
    assert_permutation_equivariant,
    assert_psd,
    assert_spectrum_within,
    operator_matrix,
)
from sheafprop.testing.multigraph import Multigraph, dense_coboundary, dense_laplacian, dense_metric
from sheafprop.testing.sheaf_test_case import SheafTestCase

__all__ = [
    "Multigraph",
    "SheafTestCase",
    "assert_adjoint",
    "assert_equals_dense",
    "assert_gauge_equivariant",
    "assert_permutation_equivariant",
    "assert_psd",
    "assert_spectrum_within",
    "dense_coboundary",
    "dense_laplacian",
    "dense_metric",
    "operator_matrix",
]
