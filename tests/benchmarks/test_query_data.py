from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.query_files import read_compact_queries

from sheafprop.data import Vocabulary
from sheafprop.data.answer_sets import AnswerSets
from sheafprop.errors import DataError
from tests.benchmarks.test_query_files import write_compact


def test_graphs_and_candidates_of_the_splits(tmp_path):
    data = read_compact_queries(write_compact(tmp_path / "7.npz"))
    assert data.candidates("valid").tolist() == [0, 1, 2, 3]
    assert data.candidates("test").tolist() == [0, 1, 2, 4]
    assert len(data.observed("test")) == 4
    assert data.full("valid").tolist()[-1] == [2, 1, 3]
    task = data.completion("test")
    assert task.mode == "semi-inductive"
    assert task.test.shape == (1, 3)
    assert task.inference.entities.labels[-1] == "é"
    both = data.completion("valid", inverse_relations=True)
    assert len(both.train.triples) == 4
    assert set(both.train.relations.labels) == {"r", "s", "inverse of r", "inverse of s"}
    assert len(both.valid) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"entities": Vocabulary(["a"], kind="entities")},
            r"5 entities in all need labels \(got 1",
        ),
        ({"num_entities": (3, 1, 2)}, r"6 entities in all need labels \(got 5\)"),
        (
            {"queries": {"test": {"9p": np.zeros((1, 2), int)}}},
            "test queries of type 9p cannot have",
        ),
        ({"queries": {"test": {"1p": np.array([[0, 4]])}}}, "ids of relations go from 0 to 3"),
        (
            {"answers": {"valid": {"1p": (AnswerSets.from_sets([[5], []]),) * 2}}},
            "valid answers of type 1p: ids of entities go from 0 to 4",
        ),
        (
            {"answers": {"valid": {"1p": (AnswerSets.from_sets([[1]]),) * 2}}},
            "2 valid queries of type 1p, but 1 sets of answers",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, changes, message):
    data = read_compact_queries(write_compact(tmp_path / "7.npz"))
    with pytest.raises(DataError, match=message):
        replace(data, **changes)


def test_inverse_relations_are_triples_turned_around(tmp_path):
    data = read_compact_queries(write_compact(tmp_path / "7.npz"))
    plain, both = data.completion("test"), data.completion("test", inverse_relations=True)
    triples = plain.train.triples
    turned = torch.stack([triples[:, 2], triples[:, 1], triples[:, 0]], dim=1)

    def labelled(task, rows):
        entities, relations = task.train.entities.labels, task.train.relations.labels
        return {(entities[h], relations[r], entities[t]) for h, r, t in rows.tolist()}

    expected = {(h, data.inverse_label(r), t) for h, r, t in labelled(plain, turned)}
    assert labelled(both, both.train.triples) == labelled(plain, triples) | expected
