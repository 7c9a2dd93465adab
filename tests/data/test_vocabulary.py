import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sheafprop.data import Vocabulary
from sheafprop.errors import DataError

VOCABULARY = Vocabulary(["berlin", "paris", "New York"], kind="entities")


@given(st.lists(st.text(), unique=True))
def test_ids_and_labels_are_inverse(labels):
    vocabulary = Vocabulary(labels)
    ids = vocabulary.ids(reversed(labels))
    assert ids.dtype == torch.int64
    assert ids.tolist() == list(range(len(labels)))[::-1]
    assert vocabulary.labels_of(ids) == labels[::-1]
    assert list(vocabulary) == list(vocabulary.labels) == labels
    assert len(vocabulary) == len(labels)


def test_lookup_marks_the_unknown():
    assert VOCABULARY.lookup(["paris", "Paris", "berlin"]).tolist() == [1, -1, 0]
    assert VOCABULARY.lookup([]).dtype == torch.int64
    assert "paris" in VOCABULARY
    assert "rome" not in VOCABULARY
    assert VOCABULARY.ids("paris").tolist() == [1]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["pariss"], r"^1 of the given labels .* 3 entities: 'pariss' \(did you mean 'paris'\?\)$"),
        (["new york "], r"\(did you mean 'New York'\?\)"),
        (["xyz"], r"entities: 'xyz'$"),
        (["x1", "paris", "x2", "x3", "x1", "x4"], r"^4 of .* 'x1', 'x2', 'x3' and 1 more"),
        ([5], "entities: '5'"),
    ],
)
def test_unknown_labels_are_named(labels, message):
    with pytest.raises(DataError, match=message):
        VOCABULARY.ids(labels)


@pytest.mark.parametrize("ids", [[3], [-1], torch.tensor([0, 3])])
def test_ids_out_of_range(ids):
    with pytest.raises(DataError, match=r"between 0 and 2 \(got (3|-1)\)"):
        VOCABULARY.labels_of(ids)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b", "a"], "'a' at 0 and at 2"),
        (["1", 2, 1], "'1' at 0 and at 2"),
        (["a", 1.0], r"a string or an integer \(got 1.0\). A float is not a label"),
        ([None], "a string or an integer"),
    ],
)
def test_bad_labels(labels, message):
    with pytest.raises(DataError, match=message):
        Vocabulary(labels)


def test_extend_keeps_ids_and_the_original():
    extended = VOCABULARY.extend(["rome", "paris", "rome", "oslo"])
    assert extended.labels == ("berlin", "paris", "New York", "rome", "oslo")
    assert extended.kind == "entities"
    assert len(VOCABULARY) == 3


def test_immutable_equal_hashable_and_portable():
    with pytest.raises(AttributeError):
        VOCABULARY.labels = ()
    with pytest.raises(TypeError):
        VOCABULARY.index["x"] = 1
    same = Vocabulary(VOCABULARY.labels)
    assert same == VOCABULARY
    assert hash(same) == hash(VOCABULARY)
    assert same != VOCABULARY.extend(["x"])
    assert pickle.loads(pickle.dumps(VOCABULARY)) == VOCABULARY
    assert copy.deepcopy(VOCABULARY) is VOCABULARY
    assert copy.copy(VOCABULARY) is VOCABULARY
    assert VOCABULARY.labels_of(np.array([2, 0])) == ["New York", "berlin"]
    assert repr(VOCABULARY) == "Vocabulary(3 entities)"
