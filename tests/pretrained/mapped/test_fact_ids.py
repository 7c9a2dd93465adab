import numpy as np
import pytest
import torch

from sheafprop.data import write_triples
from sheafprop.errors import DataError, UnknownRelationError
from sheafprop.pretrained.mapped.array_folder import ArrayFolder
from sheafprop.pretrained.mapped.fact_ids import read_fact_ids, write_fact_ids
from sheafprop.pretrained.model_state import ModelState
from sheafprop.seeding import label_keys
from tests.pretrained.models import FACTS, stored_model


@pytest.fixture
def state():
    return ModelState.from_stored(stored_model("transe"))


def written(tmp_path, state, facts, *more, **options):
    paths = []
    for i, rows in enumerate((facts, *more)):
        write_triples(tmp_path / f"f{i}.tsv", rows)
        paths.append(tmp_path / f"f{i}.tsv")
    arguments = dict(on_unknown_relation="error", options={}) | options
    return write_fact_ids(ArrayFolder(tmp_path / "ids"), paths, state, **arguments)


def test_new_entities_come_first_and_known_ones_in_the_models_order(tmp_path, state):
    found = written(tmp_path, state, FACTS[:4], FACTS[4:])
    again = read_fact_ids(ArrayFolder(tmp_path / "ids"))
    for ids in (found, again):
        assert ids.new_labels(0, 3) == ["n0", "n1", "n2"]
        assert ids.new_keys(1, 2).tolist() == label_keys(["n1"]).tolist()
        known = state.index.labels_of(_tensor(ids.known))
        # a9 meets a known entity alone.
        assert set(known) == {"a1", "a2", "a3", "a5", "a7"}
        assert ids.known.tolist() == sorted(ids.known.tolist())
        (chunk,) = ids.chunks()
        names = [*ids.new_labels(0, 3), *known]
        facts = [
            (names[h], r, names[t]) if max(h, t) < len(names) else None
            for h, r, t in zip(
                chunk.head.tolist(),
                state.relations.labels_of(_tensor(chunk.edge_type)),
                chunk.tail.tolist(),
                strict=True,
            )
        ]
        assert facts[:-1] == FACTS[:-1]
        assert ids.counts == {
            "facts": 11,
            "new_entities": 3,
            "known_entities": 6,
            "dropped_facts": {},
        }


def test_weights_are_those_of_the_relations(tmp_path, state):
    found = written(tmp_path, state, FACTS)
    weight = np.array([0.5, 2.0, 3.0])
    (chunk,) = found.chunks(weight)
    assert chunk.weight.tolist() == weight[chunk.edge_type].tolist()


def test_unknown_relations(tmp_path, state):
    facts = [*FACTS, ("x", "unheard", "y"), ("x", "unheard", "a1"), ("z", "nxet", "a1")]
    with pytest.raises(UnknownRelationError) as told:
        written(tmp_path, state, facts)
    for words in ("'unheard' (2 facts)", "did you mean 'next'", "line 12", "3 of 14 facts", "drop"):
        assert words in str(told.value)
    assert read_fact_ids(ArrayFolder(tmp_path / "ids")) is None
    found = written(tmp_path, state, facts, on_unknown_relation="drop")
    assert found.counts["dropped_facts"] == {"unheard": 2, "nxet": 1}
    assert found.new_labels(0, len(found.new)) == ["n0", "n1", "n2"]  # none of dropped facts alone
    with pytest.raises(UnknownRelationError):
        written(tmp_path, state, facts[-3:], on_unknown_relation="drop")


def test_facts_without_a_new_entity_are_refused(tmp_path, state):
    with pytest.raises(DataError, match="nothing to propagate to"):
        written(tmp_path, state, [("a1", "far", "a9")])


def _tensor(array):
    return torch.from_numpy(np.asarray(array, dtype=np.int64))
