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


@pytest.mark.parametrize("sizes", SIZES)
def test_removed_labels_are_unknown_and_later_ids_move_up(sizes):
    index, labels, origins = grown_index(sizes)
    kept = [i for i in range(len(labels)) if i not in (0, len(labels) - 1)]
    smaller = index.without(torch.tensor([0, len(labels) - 1]))
    assert len(smaller) == len(kept)
    assert smaller.all_labels() == tuple(labels[i] for i in kept)
    assert smaller.vocabulary().labels == smaller.all_labels()
    assert smaller.origins() == tuple(origins[i] for i in kept)
    assert smaller.lookup(labels).tolist() == [-1, *range(len(kept)), -1]
    assert smaller.labels_of(range(len(kept))) == [labels[i] for i in kept]
    assert labels[0] not in smaller
    assert index.lookup(labels).tolist() == list(range(len(labels)))
    # Removed labels may come again, and again.
    grown = smaller.add([labels[0]], ["new"]).add(["other", labels[-1]], ["x", "y"])
    assert grown.lookup([labels[0], labels[-1]]).tolist() == [len(kept), len(kept) + 2]
    assert grown.origins()[len(kept) :] == ("new", "x", "y")
    changed = grown.with_origins({len(kept): "z"})
    assert changed.origins()[len(kept) :] == ("z", "x", "y")
    assert grown.lookalikes(0) == {}


def test_what_looks_like_an_earlier_label_is_named():
    labels = ["a", "B", "b", "c "]
    index = EntityIndex(Vocabulary(labels, kind="entities"), ["o"] * 4).add(["A", " b", "d"], "xyz")
    assert index.lookalikes(4) == {"A": "a", " b": "B"}
    assert index.lookalikes(0) == {"b": "B", "A": "a", " b": "B"}
    assert index.without(torch.tensor([1])).lookalikes(3) == {"A": "a", " b": "b"}
