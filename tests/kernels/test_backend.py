import subprocess
import sys

import pytest
import torch

from sheafprop.kernels import backend
from sheafprop.kernels.backend import (
    backend_of,
    run_starts,
    sort_rows,
    stable_order,
    use_backend,
)
from sheafprop.kernels.csr_product import CSRProduct
from tests.kernels.cases import random


def test_importing_the_package_and_a_plan_compiles_nothing():
    loops = "sheafprop.kernels.numba_loops"
    code = f"import sys, sheafprop.sheaf, sheafprop.nn; sys.exit({loops!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_traced_and_unusual_features_take_torch():
    assert backend_of(torch.ones(2)) == "numba"
    assert backend_of(torch.ones(2, dtype=torch.bfloat16)) == "torch"
    seen = []
    torch.vmap(lambda x: seen.append(backend_of(x)) or x)(torch.ones(2, 3))
    assert seen == ["torch"]
    with use_backend("torch"):
        assert backend_of(torch.ones(2)) == "torch"
    assert backend_of(torch.ones(2)) == "numba"


def test_without_numba_the_results_are_the_same_and_it_is_said(monkeypatch):
    row, col = torch.tensor([2, 0, 2, 2]), torch.tensor([1, 1, 0, 1])
    value = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    x = random(2, 3, dtype=torch.float64)
    expected = CSRProduct(row, col, value, 3, 2)(x)
    monkeypatch.setitem(sys.modules, "sheafprop.kernels.numba_loops", None)
    backend.numba_loops.cache_clear()
    try:
        with pytest.warns(UserWarning, match="numba cannot be used"):
            ours = CSRProduct(row, col, value, 3, 2)(x)
    finally:
        backend.numba_loops.cache_clear()
    dense = torch.zeros(3, 2, dtype=torch.float64).index_put((row, col), value, accumulate=True)
    assert torch.allclose(ours, dense @ x, atol=1e-14)
    assert torch.allclose(expected, dense @ x, atol=1e-14)


def test_a_cache_that_cannot_be_written_only_costs_compilation(tmp_path):
    code = """
import numba.core.caching as caching
def refuse(*arguments): raise RuntimeError("cannot cache function: no locator available")
caching.FunctionCache.__init__ = refuse
import torch
from sheafprop.kernels.backend import numba_loops
start, order = numba_loops().counting_order(torch.tensor([2, 0, 2]).numpy(), 3)
assert start.tolist() == [0, 1, 1, 3] and order.tolist() == [1, 0, 2]
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("num_keys", [3, 100_000])
def test_stable_order(num_keys):
    key = torch.randint(3, (500,), generator=torch.Generator().manual_seed(0))
    start, order = stable_order(key, num_keys)
    assert torch.equal(order, torch.argsort(key, stable=True))
    counts = torch.bincount(key, minlength=num_keys)
    assert torch.equal(start[1:] - start[:-1], counts)
    assert start.numel() == num_keys + 1


@pytest.mark.parametrize("size", [7, 2**33])
@pytest.mark.parametrize("valued", [True, False])
def test_rows_are_sorted_with_their_values(size, valued):
    g = torch.Generator().manual_seed(0)
    # Ids below the size that show whether the upper bits count, and ties in every column.
    ids = torch.randint(4, (3, 300), generator=g) * (size // 7)
    rows = [*ids.tolist(), list(range(300))]
    value = torch.arange(300) if valued else None
    columns, moved = sort_rows([(column, size) for column in ids], value)
    expected = sorted(zip(*rows, strict=True))
    assert [row[:3] for row in expected] == list(zip(*(c.tolist() for c in columns), strict=True))
    if valued:
        assert torch.equal(ids[:, moved], torch.stack(columns))
        assert moved.unique().numel() == 300
    else:
        assert moved is None
    starts = run_starts(torch.tensor([0, 0, 2, 2, 2]), 4)
    assert starts.tolist() == [0, 2, 2, 5, 5]
