"""Examples of hypothesis may take as long as a busy machine needs.

The option ``--torch-backend``: plain torch operations, as where the compiled loops fail.
"""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def same_arithmetic():
    """No test may change the arithmetic of those after it: on processors with units for bfloat16, a
    lower precision of products is that of bfloat16."""
    before = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    yield
    assert (torch.get_float32_matmul_precision(), torch.get_default_dtype()) == before


def pytest_addoption(parser):
    parser.addoption(
        "--torch-backend",
        action="store_true",
        help="take plain torch operations in place of compiled loops, and skip what asks for these",
    )


def pytest_configure(config):
    if not config.getoption("--torch-backend"):
        return
    # Before any other module takes these names. Loops over sets have no other implementation, and
    # stay.
    from sheafprop.kernels import backend

    chosen = backend.use_backend

    def use_backend(name):
        if name == "numba":
            pytest.skip("runs with --torch-backend")
        return chosen(name)

    backend.numba_loops = lambda: None
    backend.use_backend = use_backend
