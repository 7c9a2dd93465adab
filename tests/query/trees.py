"""Random queries as nested tuples, and the batch of one query that means the same."""

import torch

from sheafprop.query import STRUCTURES, QueryBatch, QueryShape


def fill(shape, rng, num_entities, num_relations, weighted=False):
    """A random query of a shape, as the tuples of brute_force."""
    if shape.operator == "anchor":
        return ("anchor", int(rng.integers(num_entities)))
    if shape.operator == "via":
        inner = fill(shape.branches[0], rng, num_entities, num_relations, weighted)
        weight = (
            float(rng.choice([0.0, 0.3, 1.0, 2.5], p=[0.1, 0.3, 0.3, 0.3])) if weighted else 1.0
        )
        return (
            "via",
            inner,
            int(rng.integers(num_relations)),
            bool(rng.integers(2)),
            weight,
        )
    return (
        shape.operator,
        tuple(fill(b, rng, num_entities, num_relations, weighted) for b in shape.branches),
    )


def as_batch(tree, num_relations):
    """A batch of this one query."""
    slots, weights = [], []

    def visit(node):
        if node[0] == "anchor":
            slots.append(node[1])
            return QueryShape("anchor")
        if node[0] == "via":
            _, inner, relation, inverse, weight = node
            shape = visit(inner)
            slots.append(relation + num_relations * inverse)
            weights.append(weight)
            return QueryShape("via", (shape,))
        return QueryShape(node[0], tuple(visit(branch) for branch in node[1]))

    shape = visit(tree)
    return QueryBatch(shape, torch.tensor([slots]), torch.tensor([weights], dtype=torch.float64))


def random_shape(rng, depth, union=False):
    """A tree of at most so many operators in a chain; never an entity alone."""
    kinds = ["hop", "via", "and"] + ["or"] * union
    kind = kinds[0] if depth <= 1 else kinds[rng.integers(len(kinds))]
    if kind == "hop":
        return STRUCTURES["1p"]
    if kind == "via":
        return QueryShape("via", (random_shape(rng, depth - 1, union),))
    count = int(rng.integers(2, 4))
    return QueryShape(kind, tuple(random_shape(rng, depth - 1, union) for _ in range(count)))
