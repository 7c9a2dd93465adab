import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.errors import DataError
from sheafprop.pretrained.entity_index import EntityIndex


def grown_index(sizes):
    """An index of e0, e1, ... that came in blocks, with its labels and origins."""
    labels = [f"e{i}" for i in range(sum(sizes))]
    origins = [f"o{i % 3}" for i in range(sum(sizes))]
    index = EntityIndex(Vocabulary(labels[: sizes[0]], kind="entities"), origins[: sizes[0]])
    start = sizes[0]
    for size in sizes[1:]:
        index = index.add(labels[start : start + size], origins[start : start + size])
        start += size
    return index, labels, origins


SIZES = [[3], [5, 1, 1, 4, 0, 2, 9], [2, 8, 1]]


@pytest.mark.parametrize("sizes", SIZES)
def test_entities_are_numbered_in_the_order_they_came(sizes):
    index, labels, origins = grown_index(sizes)
    every = torch.arange(len(labels))
    assert len(index) == len(labels)
    assert index.vocabulary().labels == tuple(labels)
    assert index.origins() == tuple(origins)
    assert torch.equal(index.ids(labels), every)
    assert index.labels_of(every.flip(0)) == labels[::-1]
    assert index.origins_of(every) == origins
    assert index.lookup(["nobody", labels[-1]]).tolist() == [-1, len(labels) - 1]
    assert labels[-1] in index
    assert "nobody" not in index
    with pytest.raises(DataError, match="did you mean 'e0'"):
        index.ids(["E0"])


def test_other_origins_leave_the_old_index_as_it_was():
    index, labels, origins = grown_index([4, 2, 1])
    changed = index.with_origins({4: "x", 6: "y"})
    assert changed.origins() == (*origins[:4], "x", origins[5], "y")
    assert changed.vocabulary().labels == tuple(labels)
    assert index.origins() == tuple(origins)
