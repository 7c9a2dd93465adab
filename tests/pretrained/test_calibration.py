import json
import math

import numpy as np
import pytest
import torch

from sheafprop import SheafModel
from sheafprop.errors import DataError
from sheafprop.pretrained import calibration
from sheafprop.pretrained.triple_input import label_triples
from tests.pretrained.models import FACTS, sheaf_model
from tests.toy import ring

HELD = [("n0", "far", "a4"), ("n1", "next", "a9"), ("a6", "skip", "n2"), ("n2", "next", "a5")]
HELD += [("n1", "far", "a2"), ("a0", "next", "n0")]
QUERIES = [f"via(far, via(next, {label}))" for label in ("n0", "n1", "n2", "a5", "a6", "a7")]


@pytest.fixture(scope="module")
def grown():
    return sheaf_model("rotate").extend(FACTS)


@pytest.fixture(scope="module")
def calibrated(grown):
    return grown.calibrate([*HELD, ring("a", 12)[0]], QUERIES)


def test_predictions_scores_and_answers_get_probabilities(grown, calibrated):
    model, report = calibrated
    assert report.num_triples == len(HELD)
    assert report.num_known == 1
    assert "expected calibration error" in report.summary()
    assert report.answers is not None
    frame = model.predict_tails("n0", "far", model.num_entities, include_known=True)
    assert frame["probability"].between(0, 1).all()
    # Facts are certain; the others fall with the score.
    assert (frame["probability"][frame["known"]] == 1).all()
    assert frame["probability"][~frame["known"]].is_monotonic_decreasing
    heads = model.predict_heads("far", "n0", 5, include_known=True)
    triples = [("n0", "far", label) for label in frame["tail"]]
    score = model.score(triples)
    back = model._state.probability(
        "head", torch.tensor([grown.labels().index("a4")]), torch.tensor([2]),
        torch.tensor([grown.labels().index("n0")]),
    )  # fmt: skip
    mean = (frame.set_index("tail")["probability"]["a4"] + float(back)) / 2
    relation = model.relations.labels[2]
    assert relation == "far"
    assert score.set_index("tail")["probability"]["a4"] == pytest.approx(mean)
    assert heads["probability"].between(0, 1).all()
    answers = model.answer(QUERIES[0], 99)
    assert answers["probability"].is_monotonic_decreasing
    bound = answers["probability"].iloc[2]
    some = model.answer(QUERIES[0], 99, min_probability=bound)
    assert list(some["answer"]) == list(answers["answer"][answers["probability"] >= bound])
    # What follows from facts alone is certain; predicted answers are not.
    certain = model.answer(QUERIES[0], 99, min_probability=1.0)
    assert certain.equals(answers[answers["known"]])
    assert len(certain) == 2
    for frame in (grown.predict_tails("n0", "far"), grown.answer(QUERIES[0])):
        assert "probability" not in frame


def test_links_have_the_fitted_numbers(grown, calibrated):
    model, _ = calibrated
    fitted, links = model.stored().calibration.links, model._state.links
    assert len(fitted.temperature) == 2 * len(model.relations)
    np.testing.assert_array_equal(links.temperature, fitted.temperature)
    np.testing.assert_array_equal(links.num_answers, fitted.num_answers)
    assert not np.allclose(links.temperature, grown._state.links.temperature)


def test_repeated_triples_count_once(grown, calibrated):
    model, report = calibrated
    again, same = grown.calibrate([*HELD, *HELD, ring("a", 12)[0]], QUERIES)
    assert same.to_dict() == report.to_dict()
    assert again.stored().calibration.state() == model.stored().calibration.state()


def asked_of(grown, model):
    """For every question of the held-out triples a frame of its predictions that are not known,
    with their scores, whether they are held out, and the calibrated temperature and number."""
    held, fitted = set(HELD), model.stored().calibration.links
    number = len(grown.relations)
    for entity, relation, end in sorted(
        {(h, r, "tail") for h, r, _ in HELD} | {(t, r, "head") for _, r, t in HELD}
    ):
        names = (entity, relation) if end == "tail" else (relation, entity)
        predict = grown.predict_tails if end == "tail" else grown.predict_heads
        frame = predict(*names, grown.num_entities)
        frame["true"] = [tuple(row) in held for row in frame[["head", "relation", "tail"]].values]
        kind = grown.relations.labels.index(relation) + number * (end == "head")
        yield kind, frame, float(fitted.temperature[kind]), float(fitted.num_answers[kind])


def test_links_are_fitted_and_judged_by_the_scores_of_both_sides(grown, calibrated):
    state, (model, _) = grown._state, calibrated
    held = state.triple_ids(label_triples(HELD, grown.relations))
    entities, wanted = held[:, [0, 2]].unique(), list(asked_of(grown, model))
    found = []
    for rows in calibration._rows(state, held, entities):
        for number, scores in enumerate(rows.scores):
            true = torch.zeros(len(scores), dtype=torch.bool)
            true[torch.from_numpy(rows.answers[number]).long()] = True
            open_ = scores > -torch.inf
            pairs = zip(scores[open_].tolist(), true[open_].tolist(), strict=True)
            found.append((rows.relation, sorted(pairs)))
    expected = [
        (kind, sorted(f[["score", "true"]].to_numpy(float).tolist())) for kind, f, *_ in wanted
    ]
    assert len(found) == len(expected)
    for (kind, own), (same, other) in zip(sorted(found), sorted(expected), strict=True):
        assert kind == same
        np.testing.assert_allclose(np.array(own, float), np.array(other, float), atol=1e-9)
    fitted = model.stored().calibration.links
    p, true = calibration._probabilities(state, fitted, held, entities)
    every = []
    for _, frame, temperature, count in wanted:
        share = np.exp(temperature * frame["score"])
        every += zip(np.minimum(0.999, count * share / share.sum()), frame["true"], strict=True)
    own = sorted(zip(p.tolist(), true.tolist(), strict=True))
    np.testing.assert_allclose(np.array(own, float), np.array(sorted(every), float), atol=1e-9)


def test_truths_are_fitted_to_answers_beyond_the_facts(grown, calibrated, monkeypatch):
    queries = [*QUERIES, *(f"via(next, via(inverse(skip), a{i}))" for i in range(5))]
    model, larger = calibrated[0], grown.extend(HELD)
    fitted, fit = [], calibration.TruthCalibration.fit
    monkeypatch.setattr(
        calibration.TruthCalibration, "fit", lambda pairs: fitted.append(pairs) or fit(pairs)
    )
    grown.calibrate(HELD, queries)
    assert set(fitted[-1]) == {"1p", "2p"}
    found = [(math.exp(t), bool(true)) for t, true in zip(*fitted[-1]["2p"], strict=True)]
    expected = []
    for query in queries:
        answers, more = model.answer(query, 99), larger.answer(query, 99)
        true = set(more["answer"][more["known"]])
        new = answers[~answers["known"]]
        expected += zip(new["truth"], new["answer"].isin(true), strict=True)
    assert any(true for _, true in expected)
    own, other = np.array(sorted(found), float), np.array(sorted(expected), float)
    np.testing.assert_allclose(own, other, atol=1e-9)


def test_a_calibration_stays_with_its_model(tmp_path, calibrated):
    model, _ = calibrated
    folder = model.save(tmp_path / "model")
    assert json.loads((folder / "manifest.json").read_text())["format"] == 3
    loaded = SheafModel.load(folder)
    for query in QUERIES[:2]:
        one, other = model.answer(query, 5), loaded.answer(query, 5)
        np.testing.assert_array_equal(one["probability"], other["probability"])
    assert loaded.with_scores().stored().calibration is not None
    larger = loaded.extend([("late", "next", "a3")])
    assert "probability" in larger.predict_tails("late", "far")
    # Other scores have another scale.
    near = loaded.with_scores(proximity=0.5)
    assert near.stored().calibration is None
    with pytest.raises(DataError, match="needs a calibrated model"):
        near.answer(QUERIES[0], min_probability=0.5)


def test_triples_to_calibrate_on_are_no_facts(grown):
    for few in ([*FACTS[:3], HELD[0]], [("n0", "far", "n0"), ("n0", "next", "n0")]):
        with pytest.raises(
            DataError, match="at least two triples that are not facts of the model, and two"
        ):
            grown.calibrate(few)
    with pytest.raises(DataError, match="'n9'"):
        grown.calibrate([("n9", "far", "a1"), *HELD])
    with pytest.raises(DataError, match="all entities but some"):
        grown.calibrate(HELD, ["not(via(far, a0))"])
    model, report = grown.calibrate(HELD)
    assert report.answers is None
    assert model.answer(QUERIES[0])["probability"].between(0, 1).all()


def test_each_half_of_the_entities_is_judged_by_what_the_other_gave(grown, monkeypatch):
    """All answers to a question are in one half, so that none of them counts as wrong."""
    asked = {"_rows": [], "_probabilities": []}
    questions = calibration._questions

    def watch(name):
        original = getattr(calibration, name)

        def watched(*arguments):
            held, entities = arguments[-2:]
            found = {
                (relation, u): set(answers[i].tolist())
                for relation, part, answers in questions(grown._state, held, entities)
                for i, u in enumerate(part.tolist())
            }
            assert {u for _, u in found} == set(entities.tolist())
            asked[name].append(found)
            return original(*arguments)

        monkeypatch.setattr(calibration, name, watched)

    watch("_rows")
    watch("_probabilities")
    held = [*HELD, ("n1", "next", "a5"), ("n1", "next", "a4"), ("n2", "next", "a4")]
    grown.calibrate(held)
    (*fitted, whole), judged = asked["_rows"], asked["_probabilities"]
    number, ids = len(grown.relations), grown.labels()
    wanted = {}
    for head, relation, tail in held:
        r, h, t = grown.relations.labels.index(relation), ids.index(head), ids.index(tail)
        wanted.setdefault((r, h), set()).add(t)
        wanted.setdefault((r + number, t), set()).add(h)
    assert whole == wanted
    assert len(fitted) == len(judged) == 2
    for own, other in zip(fitted, judged, strict=True):
        assert {u for _, u in own}.isdisjoint(u for _, u in other)
        assert own | other == whole
    assert judged == fitted[::-1]


def test_each_query_is_judged_by_the_curves_of_others(monkeypatch):
    judged = []

    class Curves:
        def __init__(self, own):
            self.fitted = {x for _, (values, _) in own for x in values.tolist()}

        @classmethod
        def fit(cls, own):
            return cls(own)

        def probability(self, x, shape):
            assert self.fitted
            assert self.fitted.isdisjoint(x.tolist())
            judged.extend(x.tolist())
            return torch.full_like(x, 0.5)

    monkeypatch.setattr(calibration, "TruthCalibration", Curves)
    monkeypatch.setattr(calibration, "_join", lambda own: own)
    values = [np.array([number, number + 0.5]) for number in range(5)]
    calibration._cross_fitted([(None, (x, np.array([True, False]))) for x in values])
    assert sorted(judged) == np.concatenate(values).tolist()
