import pytest
import torch

from sheafprop.nn import Proximity, RelationProximity, proximity
from tests.nn.walk_cases import transition_matrix, walk

# Parallel edges (of one relation and of two), a loop beside edges (5), one alone (7), an isolated
# node (8); relation 3 has no edge.
GRAPH = torch.tensor(
    [[0, 1, 2, 2, 4, 5, 5, 0, 6, 0, 0, 3, 7], [1, 2, 0, 3, 2, 2, 5, 1, 3, 1, 4, 6, 7]]
)
TYPES = torch.tensor([0, 1, 2, 0, 1, 1, 0, 0, 2, 1, 2, 2, 1])
SIZE, RELATIONS = 9, 4
SOURCES = torch.tensor([0, 3, 3, 8, 7, 5])


def weights(kind, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(len(SOURCES), RELATIONS, generator=generator, dtype=torch.float64)
    if kind == "equal":
        weight = torch.zeros_like(weight)
    elif kind == "far apart":
        weight = 20 * weight
    weight = weight.exp()
    if kind == "without a relation":
        weight[:, 1] = 0  # isolates 5
    return weight.to(dtype)


def rows_of(sources, weight, teleport=0.15, steps=20):
    """The walk of every source, with its own matrix."""
    pairs = zip(sources.tolist(), weight, strict=True)
    return torch.stack(
        [walk(transition_matrix(GRAPH, SIZE, w[TYPES]), teleport, steps)[e] for e, w in pairs]
    )


@pytest.mark.parametrize("kind", ["equal", "drawn", "far apart", "without a relation"])
@pytest.mark.parametrize("steps", [0, 1, 2, 20, 150])
@pytest.mark.parametrize("teleport", [0.15, 0.6])
def test_steps_are_those_of_the_walk_of_each_source(teleport, steps, kind):
    near = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS, teleport=teleport, num_iterations=steps)
    assert near.num_iterations == steps
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 3e-6)):
        weight = weights(kind, dtype)
        found = near(SOURCES, weight)
        assert found.dtype == dtype
        expected = rows_of(SOURCES, weight, teleport, steps)
        torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)
        torch.testing.assert_close(found.sum(1), torch.ones_like(found[:, 0]))


def test_equal_weights_give_plain_proximity():
    near, plain = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS), Proximity(GRAPH, SIZE)
    weight = torch.full((len(SOURCES), RELATIONS), 0.37)
    torch.testing.assert_close(near(SOURCES, weight), plain(SOURCES))


def test_a_weight_is_that_of_the_relations_edges():
    near = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS, teleport=0.3, num_iterations=5)
    weight = weights("drawn", torch.float32)
    for row, source, own in zip(near(SOURCES, weight), SOURCES, weight, strict=True):
        expected = proximity(
            GRAPH, SIZE, source[None], edge_weight=own[TYPES], teleport=0.3, num_iterations=5
        )
        torch.testing.assert_close(row, expected[0])


def test_defaults_are_those_of_plain_proximity():
    near = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS)
    weight = weights("drawn")
    torch.testing.assert_close(near(SOURCES, weight), rows_of(SOURCES, weight))


def test_sources_do_not_see_each_other_nor_a_common_factor():
    near, weight = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS), weights("far apart")
    rows = near(SOURCES, weight)
    for number in range(len(SOURCES)):
        part = slice(number, number + 1)
        torch.testing.assert_close(near(SOURCES[part], 1e-5 * weight[part]), rows[part])


def test_direction_and_order_of_edges_play_no_part():
    order = torch.randperm(len(TYPES), generator=torch.Generator().manual_seed(0))
    near = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS)
    other = RelationProximity(GRAPH.flip(0)[:, order], TYPES[order], SIZE, RELATIONS)
    weight = weights("drawn")
    torch.testing.assert_close(near(SOURCES, weight), other(SOURCES, weight))


@pytest.mark.parametrize("steps", [1, 4])
def test_gradients_are_finite_differences(steps):
    near = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS, num_iterations=steps)
    assert torch.autograd.gradcheck(lambda w: near(SOURCES, w), weights("drawn").requires_grad_())


@pytest.mark.parametrize("edges", [[], [6, 12]])
def test_without_edges_a_walk_stays_where_it_is(edges):
    near = RelationProximity(GRAPH[:, edges], TYPES[edges], SIZE, RELATIONS)
    weight = weights("drawn", torch.float32).requires_grad_()
    rows = near(SOURCES, weight)
    assert torch.equal(rows, torch.eye(SIZE)[SOURCES])
    rows.square().sum().backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_no_sources_give_no_rows():
    near = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS)
    assert near(SOURCES[:0], torch.ones(0, RELATIONS)).shape == (0, SIZE)


@pytest.mark.parametrize("shape", [(5, 4), (6, 3), (6,), (1, 4)])
def test_refuses_weights_of_another_shape(shape):
    near = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS)
    with pytest.raises(ValueError, match=r"'weight' must have shape \[6, 4\].*got \["):
        near(SOURCES, torch.ones(shape))


@pytest.mark.parametrize("value", [-1e-3, float("nan"), float("inf")])
def test_refuses_weights_that_weigh_nothing_meaningful(value):
    near, weight = RelationProximity(GRAPH, TYPES, SIZE, RELATIONS), weights("drawn")
    weight[2, 3] = value
    with pytest.raises(ValueError, match=r"finite and not negative.*source 2, relation 3"):
        near(SOURCES, weight)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("edge_type", {"edge_type": TYPES + 2}),
        ("edge_type", {"edge_type": TYPES - 1}),
        ("edge_type", {"edge_type": TYPES[:3]}),
        ("edge_type", {"num_relations": 2}),
        ("edge_index", {"edge_index": GRAPH.T}),
        ("edge_index", {"num_nodes": 7}),
        ("teleport", {"teleport": 1.0}),
        ("teleport", {"teleport": float("nan")}),
        ("num_iterations", {"num_iterations": -1}),
    ],
)
def test_refuses_what_is_no_graph_or_no_walk(name, changes):
    given = {"edge_index": GRAPH, "edge_type": TYPES, "num_nodes": SIZE, "num_relations": 4}
    with pytest.raises(ValueError, match=f"'{name}' must"):
        RelationProximity(**(given | changes))
