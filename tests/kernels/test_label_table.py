import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.kernels.label_table import LabelTable
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
