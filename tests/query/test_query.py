import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.errors import DataError
from sheafprop.query import STRUCTURES, Query, QueryShape, parse_query
from sheafprop.query.query import quote


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
