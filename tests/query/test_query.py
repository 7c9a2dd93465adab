import numpy as np
import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.errors import DataError
from sheafprop.query import (
    CONJUNCTIVE,
    STRUCTURES,
    Query,
    QueryBatch,
    QueryShape,
    parse_query,
    structure,
)
from sheafprop.query.query import quote
from tests.query.trees import random_shape


def test_unknown_labels_are_named_with_the_nearest_spelling():
    entities = Vocabulary(["paris", "london"], kind="entities")
    relations = Vocabulary(["capital of"], kind="relations")
    ids = parse_query('via(inverse("capital of"), paris)').ids(entities, relations)
    assert ids.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"entities: 'pariss' \(did you mean 'paris'"):
        parse_query('via("capital of", pariss)').ids(entities, relations)
    with pytest.raises(DataError, match=r"relations: 'capital off' \(did you mean 'capital of'"):
        parse_query('via("capital off", paris)').ids(entities, relations)


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_take_relations_in_walking_order(name):
    shape = STRUCTURES[name]
    relations = [f"r{i}" for i in range(len(shape.relation_slots))]
    anchors = [f"e{i}" for i in range(len(shape.entity_slots))]
    query = Query.of(name, relations, anchors)
    assert [label for label in query.labels if label[0] == "r"] == relations
    assert [label for label in query.labels if label[0] == "e"] == anchors
    with pytest.raises(ValueError, match=f"'{name}' takes {len(relations)} relations"):
        Query.of(name, [*relations, "more"], anchors)


def test_only_relations_have_an_inverse():
    with pytest.raises(ValueError, match=r"only relations have an inverse \(got the entity 'a'"):
        Query(STRUCTURES["1p"], ("a", "r"), (True, False))


def test_operators_build_the_tree_and_merge_equal_ones():
    a, b, c = (Query.entity(label).via("r") for label in "abc")
    joined = (a & b) & c
    assert joined.shape == QueryShape("and", (a.shape,) * 3)
    assert joined.labels == ("a", "r", "b", "r", "c", "r")
    assert (~a | b).shape == QueryShape("or", (QueryShape("not", (a.shape,)), b.shape))
    assert str((a | b).via("s t", inverse=True)) == 'via(inverse("s t"), or(via(r, a), via(r, b)))'
    with pytest.raises(ValueError, match="the shape has 2 slots"):
        Query(a.shape, ("a",), (False,))


@pytest.mark.parametrize(
    ("label", "text"), [("a", "a"), ("a b", '"a b"'), ('"', r'"\""'), ("x\\", "x\\"), ("", '""')]
)
def test_labels_are_quoted_where_the_parser_needs_it(label, text):
    assert quote(label) == text


def test_ids_of_inverse_relations_follow_those_of_the_others():
    entities, relations = Vocabulary(["a", "b"]), Vocabulary(["r", "s"])
    query = Query.of("pi", [("s", True), "r", ("r", True)], ["b", "a"])
    assert torch.equal(query.ids(entities, relations), torch.tensor([1, 3, 0, 0, 2]))


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
