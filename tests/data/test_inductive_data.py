import dataclasses
import pickle
import random

import pandas as pd
import pytest
import torch

from sheafprop.data import FeatureTable, InductiveData, Vocabulary, assemble
from sheafprop.data.inductive_data import add_features, renumber, triple_set_keys
from sheafprop.errors import DataError
from tests.data.test_assembly import fully, semi
from tests.toy import parts, toy_data

MODES = ["semi-inductive", "fully-inductive"]


def labelled(triples, entities, relations):
    return [
        (entities.labels[h], relations.labels[r], entities.labels[t])
        for h, r, t in triples.tolist()
    ]


def contents(data):
    """All that a data set says, in labels."""
    of_train, of_inference = data.train.entities, data.inference.entities
    sources = {
        of_inference.labels[number]: None if source < 0 else of_train.labels[source]
        for number, source in enumerate(data.boundary_source.tolist())
    }
    return {
        "train": labelled(data.train.triples, of_train, data.train.relations),
        "train_valid": labelled(data.train_valid, of_train, data.train.relations),
        "inference": labelled(data.inference.triples, of_inference, data.inference.relations),
        "valid": labelled(data.valid, of_inference, data.train.relations),
        "test": labelled(data.test, of_inference, data.train.relations),
        "known": dict(sorted(sources.items())),
        "mask": set(of_inference.labels_of(data.boundary_mask.nonzero())),
    }


@pytest.mark.parametrize("mode", MODES)
def test_other_ids_say_the_same_in_labels(mode):
    data, rng = toy_data(mode), random.Random(4)
    entities, relations = (
        Vocabulary(rng.sample(vocabulary.labels, len(vocabulary)), kind=vocabulary.kind)
        for vocabulary in (data.train.entities, data.train.relations)
    )
    other = renumber(data, entities, relations)
    assert other.train.entities == entities
    assert other.train.relations == other.inference.relations == relations
    assert contents(other) == contents(data)
    if mode == "semi-inductive":  # known entities first, with their training ids
        assert other.boundary_source[: len(entities)].tolist() == list(range(len(entities)))
    assert renumber(data, data.train.entities, data.train.relations) is data


@pytest.mark.parametrize("kind", ["entities", "relations"])
def test_other_labels_are_refused_and_named(kind):
    data = toy_data()
    vocabularies = {"entities": data.train.entities, "relations": data.train.relations}
    labels = list(vocabularies[kind])
    labels[1] = "someone else"
    changed = vocabularies | {kind: Vocabulary(labels, kind=kind)}
    with pytest.raises(
        DataError, match=f"{len(labels)} {kind} of the model must be .*'someone else'"
    ):
        renumber(data, **changed)
    labels = list(vocabularies[kind])[:-1]
    with pytest.raises(DataError, match=r"1 label unknown to the model \(first: "):
        renumber(data, **(vocabularies | {kind: Vocabulary(labels, kind=kind)}))


@pytest.mark.parametrize("mode", MODES)
def test_keys_know_sets_of_triples_in_any_order(mode):
    triples, rng = parts(mode), random.Random(1)
    keys = triple_set_keys(toy_data(mode))
    shuffled = {key: rng.sample(rows, len(rows)) for key, rows in triples.items()}
    assert triple_set_keys(assemble("other name", mode, **shuffled)) == keys
    for key, part in (("train", "train"), ("observed", "inference"), ("test", "test")):
        head = triples[key][0][0]
        for change in (triples[key][1:], [*triples[key], (head, triples[key][0][1], head)]):
            changed = triple_set_keys(assemble("ring", mode, **(triples | {key: change})))
            assert changed[part] != keys[part], (key, part)
            untouched = keys.keys() - {part, "inference"}
            assert {k: changed[k] for k in untouched} == {k: keys[k] for k in untouched}
    # Direction and relation count.
    turned = [(t, r, h) for h, r, t in triples["valid"]]
    assert (
        triple_set_keys(assemble("ring", mode, **(triples | {"valid": turned})))["valid"]
        != (keys["valid"])
    )
    assert "valid" not in triple_set_keys(toy_data(mode, without=("valid",)))


def test_summary_and_repr():
    data = fully(notes=["made by hand"], valid=[("y", "r", "a")])
    lines = data.summary().splitlines()
    assert lines[0].startswith("toy (fully-inductive: all entities")
    assert "  inference graph: 4 entities, all of them new, 3 triples" in lines
    assert "  to predict: 1 validation triple, 0 test triples" in lines
    assert "  note: made by hand" in lines
    assert repr(data) == (
        "InductiveData(toy, fully-inductive, train=[3 entities, 3 triples], "
        "inference=[4 entities, 3 triples, 4 free], valid=1, test=0)"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"boundary_mask": torch.ones(7, dtype=torch.bool)},
            r"'boundary_mask' must have shape \[5\].* \[7\]",
        ),
        ({"boundary_mask": torch.ones(5)}, r"boolean \(got torch.float32\)"),
        ({"boundary_source": torch.zeros(4, dtype=torch.int64)}, r"'boundary_source' .* \[4\]"),
        (
            {"boundary_source": torch.zeros(5, dtype=torch.int64)},
            "a training id where 'boundary_mask' is true",
        ),
        ({"boundary_source": torch.tensor([0, 1, 3, -1, -1])}, r"training entities, 3 \(got 3\)"),
        (
            {
                "boundary_mask": torch.ones(5, dtype=torch.bool),
                "boundary_source": torch.zeros(5, dtype=torch.int64),
            },
            "no free entities: all 5",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(semi(), **changes)
    with pytest.raises(ValueError, match="'mode' must be one of"):
        dataclasses.replace(semi(), mode="other")


def test_frozen_and_portable():
    data = semi(valid=[("y", "r", "a")])
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.valid = None
    copy = pickle.loads(pickle.dumps(data))
    assert isinstance(copy, InductiveData)
    assert torch.equal(copy.inference.triples, data.inference.triples)
    assert copy.report == data.report


def test_features_are_counted_in_a_note_and_must_be_of_the_training_graph():
    data = semi()
    labels = [*data.train.entities.labels[:3], "y", "other"]
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [1.0, *[None] * 4]}, labels)
    more = add_features(data, FeatureTable.of(frame))
    assert len(more.features) == 5
    assert data.features is None
    (note,) = set(more.report["notes"]) - set(data.report.get("notes", []))
    found = sum(label in labels for label in data.inference.entities.labels)
    assert f"features of 3 of 3 training entities and {found} of 5 of the inference" in note
    assert note in more.summary()
    with pytest.raises(DataError, match=r"none of its 5 labels occurs .*here: 'A'"):
        add_features(data, FeatureTable.of(frame.rename(index=str.upper)))
    frame.loc["a", ["size", "b"]] = None
    with pytest.raises(DataError, match=r"at least 3 training entities must have features .got 2"):
        add_features(data, FeatureTable.of(frame))
