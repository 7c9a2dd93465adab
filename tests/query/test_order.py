"""Another order of entities, relations and queries changes scores by rounding only."""

import dataclasses

import numpy as np
import pytest
import torch

from sheafprop.query import STRUCTURES, QueryAnswering, QueryBatch
from tests.query.test_query_answering import NAMES
from tests.query.trees import as_batch, fill
from tests.sheaf_cases import NUM_RELATIONS, SHEAF_KINDS, make_sheaf

NUM_ENTITIES = 7


def renumbered(tree, entity, relation):
    if tree[0] == "anchor":
        return ("anchor", int(entity[tree[1]]))
    if tree[0] == "via":
        _, inner, r, inverse, weight = tree
        return ("via", renumbered(inner, entity, relation), int(relation[r]), inverse, weight)
    return (tree[0], tuple(renumbered(branch, entity, relation) for branch in tree[1]))


@pytest.mark.parametrize("kind", SHEAF_KINDS)
@pytest.mark.parametrize("structure", NAMES)
def test_scores_do_not_depend_on_the_order(structure, kind):
    sheaf = make_sheaf(kind)
    g = torch.Generator().manual_seed(2)
    dtype = sheaf.dtype or torch.float64
    x = torch.randn(NUM_ENTITIES, 1, 3, generator=g, dtype=dtype)
    node, relation = (torch.randperm(n, generator=g) for n in (NUM_ENTITIES, NUM_RELATIONS))
    tables = {
        field.name: value[relation]
        for field in dataclasses.fields(sheaf)
        if isinstance(value := getattr(sheaf, field.name), torch.Tensor)
    }
    other = QueryAnswering(dataclasses.replace(sheaf, **tables), x[node])
    answering = QueryAnswering(sheaf, x)
    rng = np.random.default_rng(4)
    trees = [fill(STRUCTURES[structure], rng, NUM_ENTITIES, NUM_RELATIONS) for _ in range(4)]
    for tree in trees:
        moved = renumbered(tree, torch.argsort(node), torch.argsort(relation))
        first = answering.score(as_batch(tree, NUM_RELATIONS))[0]
        again = other.score(as_batch(moved, NUM_RELATIONS))[0]
        # Both agree with the energies of brute_force to 1e-8 of their size in the other tests; an
        # order may change what rounding leaves by twice that at most.
        assert float((again - first[node]).abs().max()) <= 2e-8 * (1 + float(first.abs().max()))


def test_the_order_of_queries_does_not_matter():
    sheaf = make_sheaf("dense, pair")
    g = torch.Generator().manual_seed(3)
    x = torch.randn(NUM_ENTITIES, 1, 3, generator=g, dtype=torch.float64)
    slots = torch.stack(
        [
            torch.randint(n, (20,), generator=g)
            for n in (NUM_ENTITIES, NUM_RELATIONS, NUM_RELATIONS)
        ],
        dim=1,
    )
    order = torch.randperm(20, generator=g)
    first = QueryAnswering(sheaf, x).score(QueryBatch.of("2p", slots))
    again = QueryAnswering(sheaf, x).score(QueryBatch.of("2p", slots[order]))
    torch.testing.assert_close(again, first[order])
