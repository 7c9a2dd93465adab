import numpy as np
import pytest
import torch

from sheafprop.query import QueryBatch, QueryShape, structure
from tests.query.brute_force import conjunctions
from tests.query.trees import as_batch, fill, random_shape


def leaves(tree):
    """What a conjunctive tree says, whatever the order of its branches."""
    if tree[0] == "via":
        return ("via", leaves(tree[1]), *tree[2:])
    if tree[0] == "and":
        flat = []
        for branch in tree[1]:
            inner = leaves(branch)
            flat += inner[1] if inner[0] == "and" else [inner]
        return ("and", tuple(sorted(flat, key=repr)))
    return tree


def as_trees(batch, num_relations):
    """The first query of a batch as the tuples of brute_force."""
    ids, weights = batch.slots[0].tolist(), batch.edge_weight[0].tolist()

    def visit(shape):
        if shape.operator == "anchor":
            return ("anchor", ids.pop(0))
        inner = tuple(visit(branch) for branch in shape.branches)
        if shape.operator == "via":
            inverse, relation = divmod(ids.pop(0), num_relations)
            return ("via", inner[0], relation, bool(inverse), weights.pop(0))
        return (shape.operator, inner)

    return visit(batch.shape)


def test_conjunctions_say_together_what_the_query_says():
    rng = np.random.default_rng(0)
    for _ in range(60):
        tree = fill(random_shape(rng, 5, union=True), rng, 9, 4, weighted=True)
        got = [as_trees(part, 4) for part in as_batch(tree, 4).conjunctions()]
        want = [leaves(term) for term in conjunctions(tree)]
        assert sorted(map(repr, map(leaves, got))) == sorted(map(repr, want))


def test_queries_that_differ_in_the_order_of_branches_become_equal():
    rng = np.random.default_rng(1)

    def shuffled(tree):
        if tree[0] == "via":
            return ("via", shuffled(tree[1]), *tree[2:])
        if tree[0] == "and":
            branches = [shuffled(branch) for branch in tree[1]]
            return ("and", tuple(branches[i] for i in rng.permutation(len(branches))))
        return tree

    for _ in range(60):
        tree = fill(random_shape(rng, 5), rng, 9, 4, weighted=True)
        (one,) = as_batch(tree, 4).conjunctions()
        (other,) = as_batch(shuffled(tree), 4).conjunctions()
        assert one.shape == other.shape
        assert torch.equal(one.slots, other.slots)
        assert torch.equal(one.edge_weight, other.edge_weight)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: QueryBatch.of("2q", torch.zeros(1, 2)), "'structure' must be one of 1p.*'2q'"),
        (lambda: QueryBatch.of("1p", torch.zeros(3, 3).long()), r"int64 \[Q, 2\].*\[3, 3\]"),
        (lambda: QueryBatch.of("1p", torch.zeros(3, 2)), "int64.*float32"),
        (
            lambda: QueryBatch.of("2p", torch.zeros(3, 3).long(), torch.ones(3, 1)),
            r"'edge_weight' must be real \[3, 2\]",
        ),
        (
            lambda: QueryBatch.of("1p", torch.zeros(1, 2).long(), -torch.ones(1, 1)),
            "not negative",
        ),
        (
            lambda: QueryBatch.of("1p", torch.tensor([[0, 8]])).check_ids(5, 4),
            "relation ids go from 0 to 7, inverse ones included .got 8",
        ),
        (
            lambda: QueryBatch.of("1p", torch.tensor([[5, 0]])).check_ids(5, 4),
            "entity ids go from 0 to 4 .got 5",
        ),
        (
            lambda: QueryBatch.of("2in", torch.zeros(1, 4).long()).conjunctions(),
            "negation has no energy",
        ),
        (
            lambda: QueryBatch(QueryShape("anchor"), torch.zeros(1, 1).long()).conjunctions(),
            "an entity alone asks for nothing",
        ),
        (
            lambda: QueryBatch(
                QueryShape("and", (structure("1p"), QueryShape("anchor"))), torch.zeros(1, 3).long()
            ).conjunctions(),
            "branches of 'and' are queries",
        ),
    ],
)
def test_what_does_not_fit_is_refused(build, problem):
    with pytest.raises(ValueError, match=problem):
        build()


def test_repr():
    batch = QueryBatch.of("ip", torch.zeros(7, 5).long())
    assert repr(batch) == "QueryBatch(7 x via(r, and(via(r, e), via(r, e))))"
