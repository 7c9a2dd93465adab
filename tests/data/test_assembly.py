import json
import warnings

import numpy as np
import pytest
import torch

from sheafprop.data import assemble
from sheafprop.errors import DataError, UnknownRelationError

TRAIN = [("a", "r", "b"), ("b", "s", "c"), ("c", "r", "a")]
OBSERVED = [("x", "s", "a"), ("x", "r", "y"), ("b", "r", "x")]


def semi(**parts):
    return assemble("toy", "semi-inductive", **({"train": TRAIN, "observed": OBSERVED} | parts))


def fully(**parts):
    return assemble("toy", "fully-inductive", **({"train": TRAIN, "observed": OBSERVED} | parts))


def labels_of(graph, triples):
    return [
        tuple(
            graph.entities.labels_of([h])
            + graph.relations.labels_of([r])
            + graph.entities.labels_of([t])
        )
        for h, r, t in triples.tolist()
    ]


def test_semi_inductive_ids_continue_those_of_training():
    data = semi(train_valid=[("a", "s", "c")], valid=[("y", "r", "a")], test=[("x", "s", "y")])
    assert data.mode == "semi-inductive"
    assert data.train.entities.labels == ("a", "b", "c")
    assert data.inference.entities.labels == ("a", "b", "c", "x", "y")
    assert data.boundary_mask.tolist() == [True, True, True, False, False]
    assert data.boundary_source.tolist() == [0, 1, 2, -1, -1]
    assert labels_of(data.train, data.train.triples) == TRAIN
    assert labels_of(data.inference, data.inference.triples) == TRAIN + OBSERVED
    assert labels_of(data.train, data.train_valid) == [("a", "s", "c")]
    assert labels_of(data.inference, data.valid) == [("y", "r", "a")]
    assert labels_of(data.inference, data.test) == [("x", "s", "y")]
    assert data.inference.relations is data.train.relations


def test_fully_inductive_keeps_equal_labels_apart():
    data = fully(valid=[("y", "r", "a")])
    assert data.inference.entities.labels == ("x", "a", "y", "b")
    assert not data.boundary_mask.any()
    assert data.boundary_source.tolist() == [-1] * 4
    assert labels_of(data.inference, data.inference.triples) == OBSERVED
    # Relation ids are those of training, although the order of appearance differs here.
    assert data.inference.edge_type.tolist() == [1, 0, 0]
    assert data.inference.num_relations == 2
    assert data.report["shared_labels"] == 2
    assert data.report["anchored_by_label"] == 0
    assert any("2 labels occur in both graphs" in note for note in data.report["notes"])
    assert (data.train_valid, data.test) == (None, None)


def test_report_counts():
    data = semi(
        train=[*TRAIN, TRAIN[0], ("a", "r", "a")],
        observed=[*OBSERVED, OBSERVED[0], ("u", "r", "v"), ("w", "s", "w"), TRAIN[0]],
        valid=[("y", "r", "a"), ("y", "r", "a"), ("a", "s", "c")],
        test=[("a", "r", "x"), ("w", "r", "w")],
    )
    expected = {
        "train_entities": 3,
        "train_relations": 2,
        "train_triples": 4,
        "train_duplicates": 1,
        "train_self_loops": 1,
        "inference_entities": 8,
        "inference_relations": 2,
        "inference_triples": 9,
        "inference_duplicates": 2,
        "inference_self_loops": 2,
        "observed_triples": 6,
        "boundary_entities": 3,
        "free_entities": 5,
        "shared_labels": 2,
        "anchored_by_label": 2,
        "components": 3,
        "components_without_boundary": 2,
        "isolated_free": 1,
        "train_valid_triples": 0,
        "valid_triples": 2,
        "valid_duplicates": 1,
        "valid_without_free": 1,
        "valid_swapped_pairs": 1,
        "test_triples": 2,
        "test_swapped_pairs": 1,
        "overlaps": {"train/observed": {"count": 1, "example": ["a", "r", "b"]}},
    }
    assert {key: data.report[key] for key in expected} == expected
    assert any("(first: 'w')" in note for note in data.report["notes"])
    assert json.loads(json.dumps(data.report)) == data.report


@pytest.mark.parametrize("make", [semi, fully])
def test_a_triple_counts_once_however_often_it_is_given(make):
    clean = {
        "train": [*TRAIN, ("c", "s", "a")],
        "observed": [*OBSERVED, ("x", "r", "x"), ("a", "s", "b")],
        "train_valid": [("a", "s", "c")],
        "valid": [("y", "r", "a"), ("y", "s", "b")],
        "test": [("x", "s", "y")],
    }
    once = make(**clean)
    often = make(**{key: [*rows, *reversed(rows), rows[0]] for key, rows in clean.items()})
    for name in ("train", "inference"):
        graphs = getattr(once, name), getattr(often, name)
        assert torch.equal(graphs[0].triples, graphs[1].triples)
        assert graphs[0].entities == graphs[1].entities
    for name in ("boundary_source", "train_valid", "valid", "test"):
        assert torch.equal(getattr(once, name), getattr(often, name))
    for key, rows in clean.items():
        count = len(rows) + 1
        spoken = {"train": "training", "train_valid": "transductive validation"}.get(key, key)
        spoken = {"valid": "validation"}.get(spoken, spoken)
        assert (
            sum(f"{count} {spoken} triples are duplicates" in n for n in often.report["notes"]) == 1
        )
    # A known triple among the observed ones is in the inference graph once.
    known = make(**clean | {"observed": [*clean["observed"], TRAIN[1]]})
    assert len(known.inference.triples.unique(dim=0)) == len(known.inference.triples)


@pytest.mark.parametrize("make", [semi, fully])
def test_unknown_relations_are_named_and_counted(make):
    parts = {
        "observed": [*OBSERVED, ("x", "new", "z"), ("x", "new", "a"), ("x", "other", "a")],
        "valid": [("x", "new", "y"), ("x", "r", "z")],
    }
    with pytest.raises(UnknownRelationError) as caught:
        make(**parts)
    message = str(caught.value)
    assert "2 relations" in message
    assert "'new': 3 triples, 'other': 1 triple;" in message
    assert "observed: 3, valid: 1" in message
    assert "on_unknown_relation='drop'" in message
    data = make(**parts, on_unknown_relation="drop")
    assert data.report["unknown_relations"] == {"new": 3, "other": 1}
    assert data.report["dropped_triples"] == {"observed": 3, "valid": 1}
    assert any(
        "4 triples were dropped" in note and "'new'" in note for note in data.report["notes"]
    )
    # z occurs in a dropped triple alone: it is no entity of the graph.
    assert "z" not in data.inference.entities
    assert data.report["unseen_entities_valid"]["triples"] == 1
    assert data.valid is None
    assert data.inference.num_relations == 2


def test_many_unknown_relations_are_cut():
    observed = OBSERVED + [("x", f"q{i}", "a") for i in range(9)]
    with pytest.raises(UnknownRelationError, match=r"9 relations .* and 4 more"):
        semi(observed=observed)


def test_unseen_entities_are_removed_counted_and_reported():
    test = [("x", "r", "a"), ("x", "r", "p"), ("p", "r", "q"), ("y", "s", "x")]
    data = semi(test=test, train_valid=[("a", "r", "x"), ("a", "s", "b")])
    assert labels_of(data.inference, data.test) == [test[0], test[3]]
    assert data.report["unseen_entities_test"] == {
        "triples": 2,
        "entities": 2,
        "examples": [["x", "r", "p"], ["p", "r", "q"]],
    }
    # x is new: it is unseen in the training graph.
    assert labels_of(data.train, data.train_valid) == [("a", "s", "b")]
    assert data.report["unseen_entities_train_valid"]["triples"] == 1
    assert any("2 test triples were removed: 2 " in note for note in data.report["notes"])
    assert data.report["unseen_entities_valid"]["triples"] == 0
    # In the fully inductive mode c occurs in the training graph only.
    assert fully(test=[("x", "r", "c"), ("x", "r", "b")]).report["unseen_entities_test"] == {
        "triples": 1,
        "entities": 1,
        "examples": [["x", "r", "c"]],
    }


@pytest.mark.parametrize(
    ("make", "parts", "key", "example"),
    [
        (semi, {"test": [OBSERVED[0], ("x", "s", "y")]}, "observed/test", OBSERVED[0]),
        (semi, {"valid": [TRAIN[1]]}, "train/valid", TRAIN[1]),
        (semi, {"train_valid": [TRAIN[2]]}, "train/train_valid", TRAIN[2]),
        (fully, {"train_valid": [TRAIN[2]]}, "train/train_valid", TRAIN[2]),
        (fully, {"test": [OBSERVED[1]]}, "observed/test", OBSERVED[1]),
        (
            fully,
            {"valid": [("x", "s", "y")], "test": [("y", "s", "x"), ("x", "s", "y")]},
            "valid/test",
            ("x", "s", "y"),
        ),
    ],
)
def test_overlaps_are_reported(make, parts, key, example):
    with pytest.warns(UserWarning, match="1 triple occurs in both") as caught:
        data = make(**parts)
    assert str(list(example)) in str(caught[0].message)
    assert data.report["overlaps"] == {key: {"count": 1, "example": list(example)}}


def test_equal_triples_of_different_graphs_are_no_overlap():
    data = fully(observed=[*OBSERVED, ("a", "r", "b")], test=[("b", "s", "a")])
    assert data.report["overlaps"] == {}
    # Repeating a training triple among the observed ones is a repetition, not a leak.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = semi(observed=[*OBSERVED, TRAIN[0]])
    assert data.report["overlaps"]["train/observed"]["count"] == 1
    assert data.report["inference_duplicates"] == 1


@pytest.mark.parametrize(
    ("make", "parts", "message"),
    [
        (semi, {"observed": [("a", "s", "b")]}, "toy: no free entities: all 2 .*fully-inductive"),
        (semi, {"observed": []}, "no observed triple"),
        (fully, {"observed": []}, "no observed triple"),
        (semi, {"train": []}, "no training triple"),
        (semi, {"test": [("x", "r")]}, "test: a triple must have 3 labels"),
        (semi, {"observed": [("x", "r", 3.0)]}, "observed: labels must be strings or integers"),
    ],
)
def test_unusable_parts(make, parts, message):
    with pytest.raises(DataError, match=message):
        make(**parts)


def test_all_observed_triples_dropped():
    with pytest.raises(DataError, match="no observed triple"):
        semi(observed=[("x", "new", "a")], on_unknown_relation="drop")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "inductive"}, r"'mode' must be one of 'semi-inductive', 'fully-inductive' \(got"),
        ({"on_unknown_relation": "ignore"}, "'on_unknown_relation' must be one of"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        assemble("toy", **({"mode": "semi-inductive"} | options), train=TRAIN, observed=OBSERVED)


@pytest.mark.parametrize("observed", [[("x", "r", "y")], [("p", "r", "q"), ("q", "r", "p")]])
def test_semi_inductive_data_without_an_anchor_stops(observed):
    with pytest.raises(DataError, match=r"needs known entities.*--data.mode=fully-inductive"):
        semi(observed=observed)
    assert assemble("toy", "fully-inductive", train=TRAIN, observed=observed).report["components"]


def test_empty_parts_count_as_missing():
    data = semi(valid=[], test=np.empty((0, 3), dtype=object))
    assert data.valid is None
    assert data.test is None
