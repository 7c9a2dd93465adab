import numpy as np
import pytest
import torch

from sheafprop.query import CONJUNCTIVE, STRUCTURES, QueryBatch, QueryShape, structure
from tests.query.trees import random_shape


def test_slots_are_those_of_a_walk_in_postorder():
    rng = np.random.default_rng(0)
    for _ in range(40):
        shape = random_shape(rng, 5, union=True)
        kinds = {"anchor": "entity", "via": "relation"}
        walked = [kinds[node.operator] for node in shape.walk() if node.operator in kinds]
        assert list(shape.slot_kinds) == walked
        both = sorted(shape.entity_slots + shape.relation_slots)
        assert both == list(range(shape.num_slots))
        inner = [i for slots in shape.branch_slots for i in range(shape.num_slots)[slots]]
        assert inner == list(range(shape.num_slots - (shape.operator == "via")))


def test_conjunctions_of_unions():
    (first, one), (second, other) = structure("up").conjunctions()
    assert first == second == structure("2p")
    assert (one, other) == ((0, 1, 4), (2, 3, 4))
    both = QueryShape("and", (structure("2u"), structure("2i")))
    assert [slots for _, slots in both.conjunctions()] == [(0, 1, 4, 5, 6, 7), (2, 3, 4, 5, 6, 7)]
    assert both.conjunctions()[0][0] == structure("3i")
    for name in CONJUNCTIVE:
        ((shape, slots),) = structure(name).conjunctions()
        assert (shape, slots) == (STRUCTURES[name], tuple(range(shape.num_slots)))


def test_text_of_a_shape():
    labels = ["a", "r", "b", "s", "t"]
    assert structure("ip").text(labels) == "via(t, and(via(r, a), via(s, b)))"


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: QueryShape("xor"), "'operator' must be one of"),
        (lambda: QueryShape("and", (structure("1p"),)), "'and' takes at least two branches"),
        (lambda: QueryShape("anchor", (structure("1p"),)), "'anchor' takes 0 branches"),
        (lambda: structure("4p"), "'structure' must be one of 1p"),
    ],
)
def test_what_does_not_fit_is_refused(build, problem):
    with pytest.raises(ValueError, match=problem):
        build()


def test_too_many_conjunctions_are_refused():
    shape = QueryShape("and", (structure("2u"),) * 11)
    batch = QueryBatch(shape, torch.zeros(1, shape.num_slots).long())
    with pytest.raises(ValueError, match="stands for 2048 conjunctions"):
        batch.conjunctions()
