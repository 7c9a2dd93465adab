"""Links with random scores, and queries over entities by enumeration; imports nothing of query/
but what builds the engine."""

import math
from itertools import count

import numpy as np
import torch

from sheafprop.query import LinkProbabilities, QueryShape


class TableScorer:
    """Scores from a table ``[2R, N, N]``, which counts the rows that it was asked for."""

    def __init__(self, table):
        self.table, self.asked = table, []

    def score_links(self, entities, relation, inverse):
        row = relation + inverse * (len(self.table) // 2)
        self.asked += [(row, u) for u in entities.tolist()]
        return self.table[row][entities]


def random_links(seed, n=8, r=2, facts=10, dtype=torch.float64, **more):
    """Links of a random graph, and their probabilities ``[2R, N, N]`` by the formula."""
    rng = np.random.default_rng(seed)
    triples = rng.integers([0, 0, 0], [n, r, n], size=(facts, 3))
    table = rng.normal(size=(2 * r, n, n)) * 2
    beta, prior = rng.uniform(0.5, 2, 2 * r), rng.uniform(0.5, 3, 2 * r)
    near = np.log(rng.uniform(size=(n, n)))
    links = LinkProbabilities(
        torch.from_numpy(triples),
        n,
        r,
        TableScorer(torch.from_numpy(table)),
        temperature=torch.from_numpy(beta),
        num_answers=torch.from_numpy(prior),
        log_proximity=lambda ids: torch.from_numpy(near)[ids],
        proximity_weight=0.3,
        dtype=dtype,
        **more,
    )
    p = np.zeros((2 * r, n, n))
    for q in range(2 * r):
        for u in range(n):
            fact = [t if q < r else h for h, k, t in triples if k == q % r and (h, t)[q >= r] == u]
            z = np.exp(beta[q] * table[q, u] + 0.3 * near[u])
            p[q, u] = np.minimum(0.999, max(prior[q], len(set(fact))) * z / z.sum())
            p[q, u, fact] = 1
    return links, p


def fill_slots(shape, rng, n, r, count=1):
    """Random slots ``[count, number of slots]``."""
    columns = [
        rng.integers(n if kind == "entity" else 2 * r, size=count) for kind in shape.slot_kinds
    ]
    return torch.from_numpy(np.stack(columns, 1))


def enumerate_truth(shape, slots, p):
    """The truth of every entity: the best of all assignments of the vertices between, ``[N]``.

    Every vertex between has an axis of its own; under a negation the maximum is taken first.
    """
    n = p.shape[1]
    axes = count(1)

    def grid(axis):
        return np.arange(n).reshape((n, *[1] * axis))

    def visit(node, own, vertex):
        if node.operator == "anchor":
            return (vertex == own[0]).astype(float)
        if node.operator == "via":
            inner, q = node.branches[0], own[-1]
            between = grid(next(axes))
            return visit(inner, own[:-1], between) * p[q, between, vertex]
        if node.operator == "not":
            return 1 - enumerate_truth(node.branches[0], own, p)[vertex]
        parts = [
            visit(branch, own[part], vertex)
            for branch, part in zip(node.branches, node.branch_slots, strict=True)
        ]
        if node.operator == "and":
            return math.prod(parts)
        return 1 - math.prod(1 - part for part in parts)

    values = visit(shape, list(slots), grid(0))
    return values.max(axis=tuple(range(values.ndim - 1))) if values.ndim > 1 else values


def random_tree(rng, depth, negate=True, everything_but=False):
    """A tree of at most so many operators in a chain, which is all entities but some, or not."""
    if everything_but:
        kind = rng.choice(["not", "and", "or"]) if depth > 1 else "not"
        if kind == "not":
            return QueryShape("not", (random_tree(rng, depth - 1),))
        kinds = [kind == "and" or bool(rng.integers(2)) for _ in range(rng.integers(1, 3))]
        return _join(rng, kind, depth, negate, [True, *kinds])
    kinds = ["hop", "via", "and", "or", *["not"] * (negate and depth > 2)]
    kind = rng.choice(kinds) if depth > 1 else "hop"
    if kind == "hop":
        return QueryShape("via", (QueryShape("anchor"),))
    if kind == "via":
        return QueryShape("via", (random_tree(rng, depth - 1, negate),))
    if kind == "not":
        return QueryShape("not", (random_tree(rng, depth - 1, negate, True),))
    mixed = negate and kind == "and"
    more = [mixed and bool(rng.integers(2)) for _ in range(rng.integers(1, 3))]
    return _join(rng, kind, depth, negate, [False, *more])


def _join(rng, kind, depth, negate, everything_but):
    branches = [random_tree(rng, depth - 1, negate, one) for one in everything_but]
    return QueryShape(str(kind), tuple(branches[i] for i in rng.permutation(len(branches))))


def vertices_between(shape):
    """How many axes the enumeration needs at once."""
    if shape.operator == "not":
        return 0
    return (shape.operator == "via") + sum(map(vertices_between, shape.branches))
