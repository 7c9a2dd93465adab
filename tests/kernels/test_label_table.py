import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.kernels.label_table import LabelList, LabelTable
from sheafprop.seeding import label_keys


def fields(labels):
    encoded = [label.encode("utf-8", "surrogatepass") for label in labels]
    end = np.cumsum([len(label) for label in encoded], dtype=np.int64)
    begin = end - np.array([len(label) for label in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded) or b"\0", dtype=np.uint8), begin, end


@given(st.lists(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=60), max_size=5))
@settings(max_examples=60, deadline=None)
def test_labels_are_numbered_by_first_appearance(parts):
    table, number = LabelTable(), {}
    for part in parts:
        expected = [number.setdefault(label, len(number)) for label in part]
        assert table.number(*fields(part)).tolist() == expected
    assert len(table) == len(number)
    every = np.arange(len(number))
    assert table.labels().labels(every) == list(number)
    assert table.labels().keys(every).tolist() == label_keys(list(number)).tolist()


def test_the_table_grows():
    labels = [f"entity/{i}" for i in range(30_000)]
    table = LabelTable()
    for start in range(0, len(labels), 700):
        ids = table.number(*fields(labels[start : start + 700]))
        assert ids.tolist() == list(range(start, min(start + 700, len(labels))))
    again = table.number(*fields(labels[::-1]))
    assert again.tolist() == list(range(len(labels)))[::-1]
    assert table.labels().labels(np.array([29_999, 0])) == ["entity/29999", "entity/0"]


@given(st.lists(st.text(max_size=3), min_size=1, max_size=20), st.data())
@settings(max_examples=40, deadline=None)
def test_some_labels_are_a_list_of_their_own(labels, data):
    encoded = [label.encode("utf-8", "surrogatepass") for label in labels]
    offset = np.cumsum([0, *map(len, encoded)])
    found = LabelList(np.frombuffer(b"".join(encoded), np.uint8), offset)
    numbers = data.draw(st.lists(st.integers(0, len(labels) - 1), max_size=8))
    some = found.select(np.array(numbers, np.int64))
    assert some.labels(np.arange(len(some))) == [labels[i] for i in numbers]


def test_many_labels_are_selected_in_pieces(monkeypatch):
    monkeypatch.setattr("sheafprop.kernels.label_table._FIELDS", 3)
    table = LabelTable()
    table.number(*fields([f"l{i}" * (i % 4) or "x" for i in range(1, 20)]))
    labels = table.labels()
    numbers = np.arange(len(labels))[::-1]
    assert labels.select(numbers).labels(np.arange(len(labels))) == labels.labels(numbers)
