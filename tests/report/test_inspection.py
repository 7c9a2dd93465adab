"""Counts of an inspection against counting by hand."""

from collections import Counter

import numpy as np

from sheafprop.report.inspection import inspect_triples

TRAIN = [("a", "r", "b"), ("b", "r", "a"), ("a", "r", "b"), ("c", "s", "c"), ("b", "s", "d")]
OBSERVED = [("a", "r", "n"), ("n", "r", "m"), ("x", "s", "y"), ("x", "t", "z")]


def test_counts_components_anchors_and_overlaps_are_those_counted_by_hand():
    parts = {"train.txt": TRAIN, "inference.txt": OBSERVED, "valid.txt": [("b", "r", "a")]}
    found = inspect_triples({k: np.array(v, dtype=object) for k, v in parts.items()})
    train = found.files["train.txt"]
    assert train["components"] == 2
    assert (train["triples"], train["entities"], train["relations"]) == (5, 4, 2)
    assert (train["duplicates"], train["self_loops"], train["pairs_in_both_directions"]) == (
        1,
        1,
        1,
    )
    assert train["largest_components"] == [3, 1]
    assert found.graph is not None
    assert (found.graph["known_entities"], found.graph["new_entities"]) == (1, 5)
    assert found.graph["components_without_anchor"] == 1
    assert found.graph["anchors_of_largest"] in ([1, 0], [0, 1])
    assert found.unseen_relations == {"inference.txt": {"t": 1}}
    same = [o for o in found.overlaps if o["what"] == "triples"]
    assert [(o["files"], o["count"]) for o in same] == [(["train.txt", "valid.txt"], 1)]
    every = [triple for part in parts.values() for triple in part]
    assert found.relations == dict(Counter(r for _, r, _ in every))
    degrees = Counter(e for h, _, t in every for e in (h, t))
    assert Counter(found.degrees) == Counter(degrees.values())


def test_relations_whose_pairs_are_swapped_are_inverse():
    pairs = [(f"a{i}", f"b{i}") for i in range(10)]
    triples = [(h, "likes", t) for h, t in pairs] + [(t, "liked by", h) for h, t in pairs[:9]]
    found = inspect_triples({"facts.txt": np.array(triples, dtype=object)})
    shares = {(row["relation"], row["inverse"]): row["share"] for row in found.inverse_relations}
    assert shares == {
        ("likes", "liked by"): np.float32(0.9),
        ("liked by", "likes"): 1.0,
    }
    assert "looks like the inverse of" in found.summary()
    assert found.to_dict()["degrees"] == {"1": 2, "2": 18}


def test_parts_are_known_by_name_when_they_are_compressed():
    train = np.array([["a", "r", "b"], ["b", "r", "c"]], dtype=object)
    observed = np.array([["b", "r", "d"]], dtype=object)
    plain = inspect_triples({"train.txt": train, "inference.txt": observed})
    packed = inspect_triples({"train.tsv.gz": train, "inference.tsv.gz": observed})
    assert plain.graph is not None
    assert packed.graph == plain.graph
