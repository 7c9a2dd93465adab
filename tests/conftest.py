"""The option ``--without-numba``: the tests of plain torch operations, as where numba is missing."""

import sys
import warnings

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--without-numba",
        action="store_true",
        help="import no numba, and skip what asks for its loops",
    )


def pytest_configure(config):
    if not config.getoption("--without-numba"):
        return
    # None makes an import fail. Done before any module of the package is imported.
    sys.modules["numba"] = None
    from sheafprop.kernels import backend

    with warnings.catch_warnings():
        # Said once, and not in the middle of a test that counts warnings.
        warnings.simplefilter("ignore")
        assert backend.numba_loops() is None
    chosen = backend.use_backend

    def use_backend(name):
        if name == "numba":
            pytest.skip("without numba")
        return chosen(name)

    backend.use_backend = use_backend
