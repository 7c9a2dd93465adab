"""Plans whose triples are counted into rows against those that sort all ends."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.kernels.backend import numba_loops
from sheafprop.sheaf import DenseSheaf, PropagationPlan, plan
from sheafprop.sheaf.graph_checks import GraphInput
from sheafprop.sheaf.row_plan import can_count_rows, check_takes_rows, count_rows, needs_labels
from tests.sheaf_cases import NUM_NODES, NUM_RELATIONS, WIDTH, make_sheaf, same_numbers

KINDS = [
    "identity",
    "identity, complex",
    "identity, untranslated",
    "diagonal, unitary",
    "diagonal, real pair",
    "diagonal, complex pair",
    "diagonal, singular",
    "quaternion, unit",
    "quaternion, pair",
]
NORMALIZATIONS = ("block", "degree", None)
pytestmark = pytest.mark.skipif(numba_loops() is None, reason="needs numba")


@st.composite
def graphs(draw):
    """Edges, relations, weights or None, and a mask: loops, parallel and repeated triples too."""
    size = draw(st.integers(0, 40))
    g = np.random.default_rng(draw(st.integers(0, 2**20)))
    nodes = draw(st.sampled_from([2, 4, NUM_NODES]))
    edge_index = torch.from_numpy(g.integers(nodes, size=(2, size)))
    edge_type = torch.from_numpy(g.integers(NUM_RELATIONS, size=size))
    weight = torch.from_numpy(g.random(size)) if draw(st.booleans()) else None
    if weight is not None and size:
        weight[0] = 0
    share = draw(st.sampled_from([0.0, 0.4, 1.0]))
    return edge_index, edge_type, weight, torch.from_numpy(g.random(NUM_NODES) < share)


def both(graph, sheaf, normalization, dtype):
    edge_index, edge_type, weight, mask = graph
    arguments = dict(edge_weight=weight, boundary_mask=mask, normalization=normalization)
    build = lambda: PropagationPlan(  # noqa: E731
        edge_index, edge_type, sheaf, NUM_NODES, dtype=dtype, **arguments
    )
    counted = build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "can_count_rows", lambda *given: False)
        return counted, build()


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@given(graph=graphs(), normalization=st.sampled_from(NORMALIZATIONS))
@settings(max_examples=25, deadline=None)
def test_counting_gives_the_operators_of_sorting(kind, single, graph, normalization):
    sheaf = make_sheaf(kind)
    dtype = torch.complex128 if sheaf.dtype and sheaf.dtype.is_complex else torch.float64
    if single:
        dtype = torch.complex64 if dtype.is_complex else torch.float32
        sheaf = sheaf.promote(dtype)
    counted, sorted_ = both(graph, sheaf, normalization, dtype)
    assert counted._rows is not None
    assert sorted_._rows is None
    g = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_NODES, 2, WIDTH, generator=g, dtype=dtype)
    free = x[counted.free_index]
    close = dict(atol=1e-5, rtol=1e-5) if single else dict(atol=1e-12, rtol=1e-12)
    steps = []
    for each in (counted, sorted_):
        constant = each.constant(x)
        steps.append((constant, each.step(free, constant, 0.7), each.gradient(free, constant)))
    # Weights of equal triples, loops, and norms in a degree may be added in another order.
    loops = bool((graph[0][0] == graph[0][1]).any())
    norms = normalization == "degree" and not kind.startswith("identity")
    exact = graph[2] is None and not loops and not norms
    for ours, theirs in zip(*steps, strict=True):
        assert same_numbers(ours, theirs) if exact else torch.allclose(ours, theirs, **close)
    assert torch.equal(counted.isolated, sorted_.isolated)
    for ours, theirs in zip(counted.edges, sorted_.edges, strict=True):
        assert torch.equal(ours, theirs)
    assert counted.components_without_boundary == sorted_.components_without_boundary


@pytest.mark.parametrize("kind", KINDS)
@given(graph=graphs(), normalization=st.sampled_from(NORMALIZATIONS))
@settings(max_examples=15, deadline=None)
def test_columns_are_those_of_the_whole(kind, graph, normalization):
    sheaf = make_sheaf(kind)
    dtype = torch.complex128 if sheaf.dtype and sheaf.dtype.is_complex else torch.float64
    edge_index, edge_type, weight, mask = graph
    whole, _ = both(graph, sheaf, normalization, dtype)
    rows, sources = count_rows(
        GraphInput(edge_index, edge_type, sheaf, weight, mask),
        labels=needs_labels(sheaf, normalization),
        dtype=torch.float64,
    )
    g = torch.Generator().manual_seed(2)
    x = torch.randn(NUM_NODES, 1, WIDTH, generator=g, dtype=dtype)
    free, constant = x[whole.free_index], whole.constant(x)
    expected = whole.step(free, constant, 0.9)
    for part in (slice(0, WIDTH),) if "quaternion" in kind else (slice(0, 1), slice(1, 3)):
        own = PropagationPlan.from_rows(
            rows, sheaf, columns=part, normalization=normalization, dtype=dtype
        )
        ours = own.take_constant(x[sources][..., part] if len(sources) else None)
        step = own.step(free[..., part], ours, 0.9)
        assert same_numbers(step, expected[..., part])
        found = torch.zeros_like(constant[..., part]) if ours is None else ours
        assert same_numbers(found.expand_as(constant[..., part]), constant[..., part])


def test_what_cannot_be_counted():
    mask = torch.zeros(3, dtype=torch.bool)
    edges = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1])
    graph = GraphInput(*edges, make_sheaf("identity"), boundary_mask=mask)
    assert can_count_rows(graph)
    assert not can_count_rows(graph._replace(sheaf=make_sheaf("dense, pair")))
    graded = make_sheaf("identity").map_tensors(lambda tensor: tensor.clone().requires_grad_())
    assert not can_count_rows(graph._replace(sheaf=graded))


def test_labels_are_needed_where_relations_count_for_more_than_messages():
    assert not needs_labels(make_sheaf("identity, untranslated"), "degree")
    assert not needs_labels(make_sheaf("diagonal, unitary"), "block")
    assert needs_labels(make_sheaf("diagonal, unitary"), "degree")
    assert needs_labels(make_sheaf("identity"), "block")
    assert needs_labels(make_sheaf("diagonal, singular"), None)


def test_dense_maps_have_no_columns():
    sheaf = DenseSheaf(torch.ones(1, 2, 2), torch.ones(1, 2, 2))
    with pytest.raises(ValueError, match="only identity and diagonal maps and quaternions"):
        check_takes_rows(sheaf)
