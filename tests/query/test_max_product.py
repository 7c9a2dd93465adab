import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.kernels.backend import use_backend
from sheafprop.query.max_product import (
    best_entities,
    complement,
    intersect,
    raise_truth,
    unite,
)

_TRUTHS = st.sampled_from([0.0, 1e-300, 1e-9, 0.25, 0.5, 0.75, 1 - 1e-9, 1.0])


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("k", [1, 2, 5, 39, 40, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_best_entities_of_equal_ones_the_first(backend, k, dtype):
    rng = np.random.default_rng(k)
    for values in (5, 1000):
        truth = torch.from_numpy(rng.integers(-values, 1, size=(50, 40))).to(dtype)
        truth[rng.random((50, 40)) < 0.3] = -math.inf
        truth[7] = -math.inf
        with use_backend(backend):
            entity, value, following = best_entities(truth, k)
        for row in range(50):
            order = sorted(range(40), key=lambda v: (-truth[row, v].item(), v))
            wanted = [v for v in order[:k] if truth[row, v] > -math.inf]
            kept = value[row] > -math.inf
            assert sorted(entity[row][kept].tolist()) == sorted(wanted)
            assert value[row][kept].equal(truth[row][entity[row][kept]])
            rest = truth[row, order[k]].item() if k < 40 else -math.inf
            assert following[row].item() == rest


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("width", [1, 7, 5000])
def test_truths_are_raised_to_those_of_the_pairs(backend, width):
    rng = np.random.default_rng(width)
    rows = torch.from_numpy(rng.normal(size=(6, width)))
    rows[rng.random((6, width)) < 0.2] = -math.inf
    query = torch.from_numpy(rng.integers(4, size=30))
    query[query == 2] = 0
    row, value = torch.from_numpy(rng.integers(6, size=30)), torch.from_numpy(rng.normal(size=30))
    out = torch.from_numpy(rng.normal(size=(4, width)))
    wanted = out.clone()
    for q, r, t in zip(query.tolist(), row.tolist(), value.tolist(), strict=True):
        wanted[q] = wanted[q].maximum(rows[r] + t)
    with use_backend(backend):
        raise_truth(out, rows, query, row, value)
        raise_truth(out, rows, query[:0], row[:0], value[:0])
    assert out.equal(wanted)


@given(st.lists(_TRUTHS, min_size=2, max_size=4))
def test_operators_are_those_of_probabilities(truths):
    parts = [torch.tensor([[t]], dtype=torch.float64).log() for t in truths]
    # Products below the normal numbers have few digits.
    both = intersect(parts).exp().item()
    assert math.isclose(both, math.prod(truths), rel_tol=1e-12, abs_tol=1e-300)
    either = unite(parts)
    assert not either.isnan().any()
    assert (either <= 0).all()
    wanted = -math.expm1(sum(math.log1p(-t) if t < 1 else -math.inf for t in truths))
    assert math.isclose(either.exp().item(), wanted, rel_tol=1e-12)
    # Small truths are not lost beside one.
    back = complement(parts[0]).exp().item()
    assert math.isclose(back, 1 - truths[0], rel_tol=1e-12)
    again = complement(complement(parts[0])).exp().item()
    assert math.isclose(again, truths[0], rel_tol=1e-7, abs_tol=1e-15)


@pytest.mark.parametrize("log_truth", [-1e-300, -1e-17, -1e-9, -0.3, -0.7, -30.0, -90.0])
def test_a_complement_keeps_its_digits(log_truth):
    found = complement(torch.tensor([log_truth], dtype=torch.float64)).item()
    wanted = math.log(-math.expm1(log_truth)) if log_truth > -1 else -math.exp(log_truth)
    assert found == pytest.approx(wanted, rel=1e-12, abs=0)


def test_no_truth_is_above_one():
    """A sum of exponentials may be rounded up."""
    a, b = [torch.tensor([[x]]) for x in (-1.093791937023525e-07, -4.423541213327553e-07)]
    assert unite([a, b]).item() <= 0
    a, b = [torch.tensor([[x]]).double() for x in (-1.972068384053582e-15, -2.710712583909451e-15)]
    assert unite([a, b]).item() <= 0


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.permutations(range(4)))
def test_single_precision_does_not_see_the_order_of_parts(seed, order):
    rng = np.random.default_rng(seed)
    parts = [torch.from_numpy(np.log(rng.random((3, 50)))).float() for _ in range(4)]
    for join in (intersect, unite):
        assert join(parts).equal(join([parts[i] for i in order]))
        assert join(parts[:2]).equal(join(parts[1::-1]))
