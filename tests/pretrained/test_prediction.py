import itertools
import random

import pandas as pd
import pytest
import torch

from sheafprop.kge import KGE_REGISTRY
from sheafprop.pretrained import prediction
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.prediction import BestOf
from tests.pretrained.models import FACTS, close, sheaf_model

MODELS = sorted(KGE_REGISTRY)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("propagation", ["exact", "selected"])
def test_predictions_are_those_of_the_scores(name, p, squared, propagation):
    model = sheaf_model(name, p=p, squared=squared).extend(FACTS, propagation=propagation)
    scorer, labels = model.scorer(), model.labels()
    for entity, relation in itertools.product(("a3", "n1"), ("next", "far")):
        e = torch.tensor([labels.index(entity)])
        r = torch.tensor([model.relations.index[relation]])
        for side in ("tail", "head"):
            if side == "tail":
                frame = model.predict_tails(entity, relation, 6, include_known=True)
                expected = scorer.score_tails(e, r)[0]
            else:
                frame = model.predict_heads(relation, entity, 6, include_known=True)
                expected = scorer.score_heads(r, e)[0]
            value, best = torch.sort(expected, descending=True, stable=True)
            close(torch.tensor(frame["score"]), value[:6], 1e-6)
            # Equal scores (distance zero) may differ by rounding in the reference.
            assert set(frame[side]) == {labels[i] for i in best[:6]}
            assert list(frame["score"]) == sorted(frame["score"], reverse=True)
            column = "head" if side == "tail" else "tail"
            assert set(frame[column]) == {entity}


def test_known_answers_are_left_out_unless_asked_for():
    model = sheaf_model("rotate").extend(FACTS)
    plain = model.predict_tails("a3", "next", k=100)
    assert len(plain) == model.num_entities - 2
    assert not {"a4", "n2"} & set(plain["tail"])
    everything = model.predict_tails("a3", "next", k=100, include_known=True)
    assert len(everything) == model.num_entities
    assert set(everything["tail"][everything["known"]]) == {"a4", "n2"}
    assert set(everything["origin"]) == {"trained", "extended"}


def test_many_queries_at_once():
    model = sheaf_model("transe").extend(FACTS)
    many = model.predict_tails(["a0", "n1"], "next", k=2)
    one = pd.concat([model.predict_tails(e, "next", k=2) for e in ("a0", "n1")], ignore_index=True)
    pd.testing.assert_frame_equal(many, one)
    paired = model.predict_heads(["next", "far"], ["a0", "n1"], k=2)
    assert list(paired["relation"]) == ["next", "next", "far", "far"]
    assert len(model.predict_tails([], "next")) == 0
    with pytest.raises(ValueError, match="one for each of the 2"):
        model.predict_tails(["a0", "a1"], ["next"])


def test_queries_of_one_relation_are_scored_together(monkeypatch):
    model, batches = sheaf_model("transe"), []
    best = prediction._best_candidates

    def watched(state, side, ends, kinds, *more, **named):
        batches.append(kinds.tolist())
        return best(state, side, ends, kinds, *more, **named)

    monkeypatch.setattr(prediction, "_best_candidates", watched)
    monkeypatch.setattr(ModelState, "queries_at_once", lambda self: 8)
    queries = list(itertools.product(model.labels(), model.relations.labels))
    random.Random(2).shuffle(queries)
    frame = model.predict([(head, relation, None) for head, relation in queries], 1)
    assert list(zip(frame["head"], frame["relation"], strict=True)) == queries
    assert sum(map(len, batches)) == len(queries)
    groups = sum(len(set(batch)) for batch in batches)
    assert groups < len(model.relations) + len(batches)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_k_must_be_a_positive_integer(k):
    with pytest.raises(ValueError, match="'k' must be an integer of at least 1"):
        sheaf_model("transe").predict_tails("a0", "next", k=k)


@pytest.mark.parametrize("k", [1, 3, 7, 50])
@pytest.mark.parametrize("sizes", [[20], [3, 1, 9, 7], [1] * 20])
def test_the_best_of_blocks_are_the_first_of_a_stable_sort(k, sizes):
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        # Few values, so that many are equal, and some that are none.
        scores = torch.randint(0, 4, (20,), generator=g).float()
        scores[torch.rand(20, generator=g) < 0.2] = -torch.inf
        best, first = BestOf(k), 0
        for part in scores.split(sizes):
            best.add(first, part)
            first += len(part)
        value, order = torch.sort(scores, descending=True, stable=True)
        kept = order[:k][value[:k] > -torch.inf].sort().values
        assert best.found.tolist() == kept.tolist()
        assert torch.equal(best.value.float(), scores[kept])
