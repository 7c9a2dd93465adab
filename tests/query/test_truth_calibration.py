import json
import math

import numpy as np
import pytest
import torch

from sheafprop.errors import FormatError
from sheafprop.query import (
    STRUCTURES,
    EntityScorer,
    QueryBatch,
    QueryShape,
    ReliabilityTable,
    TruthCalibration,
    TruthPairs,
)
from sheafprop.query.truth_calibration import as_pairs, structure_name
from tests.query.entity_cases import random_links

POWERS = {"2p": 0.5, "ip": 2.0}


def draw(seed, count=4000):
    """Truths of two structures, one of which says too little, the other too much."""
    rng = np.random.default_rng(seed)
    pairs = {}
    for name, power in POWERS.items():
        t = rng.random(count)
        odds = power * np.log(t / (1 - t)) - 1
        pairs[name] = TruthPairs(np.log(t), rng.random(count) < 1 / (1 + np.exp(-odds)))
    return pairs


def test_probabilities_come_true_as_often_as_they_say():
    found = TruthCalibration.fit(draw(0))
    for name, (log_truth, true) in draw(1).items():
        x = torch.from_numpy(log_truth)
        p = found.probability(x, STRUCTURES[name])
        before = ReliabilityTable.of(x.exp(), true).expected_calibration_error
        after = ReliabilityTable.of(p, true).expected_calibration_error
        assert after < 0.03 < 0.1 < before
        grid = torch.linspace(-800, 0, 500).double()
        curve = found.probability(grid, STRUCTURES[name])
        assert bool((curve.diff() >= 0).all())
        assert 0 <= curve[0] <= curve[-1] <= 1
        assert found.probability(torch.tensor([-math.inf]), STRUCTURES[name]).tolist() == [0]


def test_isotonic_levels():
    pairs = TruthPairs(np.log([0.1, 0.2, 0.3, 0.5, 0.6, 0.6]), [0, 1, 0, 1, 1, 1])
    found = TruthCalibration.fit({"2p": pairs}, least=1)
    x = torch.tensor([0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 1]).double().log()
    p = found.probability(x, STRUCTURES["2p"])
    assert p[[0, 1, 2, 3, 4, 6, 7]].tolist() == pytest.approx([0, 0, 0.5, 0.5, 0.5, 1, 1], abs=1e-6)
    assert 0.5 < p[5] < 1


def test_facts_alone_are_certain():
    """The curve of predictions says nothing about a truth of 1."""
    low = TruthCalibration({"": np.array([[-2.0, -0.1], [0.1, 0.3]])})
    p = low.probability(torch.tensor([-math.inf, -9, -0.1, -1e-9, 0]), STRUCTURES["1p"])
    assert p.tolist() == pytest.approx([0, 0.1, 0.3, 0.3, 1])


def test_rare_structures_take_the_curve_of_all():
    pairs = {**draw(0), "3p": TruthPairs([-1.0, -2.0], [True, False])}
    found = TruthCalibration.fit(pairs)
    assert set(found.curves) == {"", "2p", "ip"}
    x = torch.tensor([-1.0, -0.1])
    other = found.probability(x, QueryShape("and", (STRUCTURES["3p"], STRUCTURES["3p"])))
    assert other.equal(found.probability(x, STRUCTURES["3p"]))
    assert not other.equal(found.probability(x, STRUCTURES["2p"]))


def test_levels_are_weighted_by_their_pairs():
    pairs = TruthPairs(np.log([0.1, 0.4, 0.4, 0.4]), [1, 0, 0, 0])
    curves = TruthCalibration.fit({"2p": pairs}, least=1)
    p = curves.probability(torch.tensor([0.1, 0.2, 0.9]).log(), STRUCTURES["2p"])
    assert p.tolist() == pytest.approx([0.25] * 3)


@pytest.mark.parametrize(("right", "wrong"), [(3, 2), (2, 3), (3, 3)])
def test_a_curve_needs_some_right_and_some_wrong_pairs(right, wrong):
    pairs = TruthPairs([-1.0] * (right + wrong), [True] * right + [False] * wrong)
    found = TruthCalibration.fit({"2p": pairs}, least=3)
    assert ("2p" in found.curves) == (right == wrong)


def test_structures_by_name_in_any_order_of_branches():
    for name, shape in STRUCTURES.items():
        assert structure_name(shape) == name
        if shape.operator == "and":
            assert structure_name(QueryShape("and", shape.branches[::-1])) == name
    assert structure_name(QueryShape("via", (STRUCTURES["3p"],))) == ""


def test_one_kind_of_pairs_only():
    for true in (True, False):
        pairs = {"2p": TruthPairs([-1.0, -math.inf, 0.0], [true] * 3)}
        found = TruthCalibration.fit(pairs)
        p = found.probability(torch.tensor([-0.5, -800.0, 0]), STRUCTURES["2p"])
        assert not p.isnan().any()
        assert bool((p >= 0.5).all()) == true
        assert TruthCalibration.from_state(json.loads(json.dumps(found.state()))).curves


def test_a_stored_calibration_is_the_same():
    found = TruthCalibration.fit(draw(0, 100))
    again = TruthCalibration.from_state(json.loads(json.dumps(found.state())))
    x = torch.linspace(-5, 0, 20)
    for name in ("2p", "3p"):
        wanted = found.probability(x, STRUCTURES[name])
        assert again.probability(x, STRUCTURES[name]).equal(wanted)
    assert repr(again) == "TruthCalibration(structures: 2p, ip)"
    curve = found.state()["curves"][""]
    for wrong in (
        {},
        {"curves": {"2p": curve}},
        {"curves": {"": [[-1.0, -2.0], [0.0, 1.0]]}},
        {"curves": {"": [[-2.0, -1.0], [1.0, 0.0]]}},
        {"curves": {"": [[-3.0, -2.0, -1.0], [0.0, 0.9, 0.5]]}},
        {"curves": {"": [[-2.0, 0.5], [0.0, 1.0]]}},
        {"curves": {"": [[-2.0, -1.0], [0.0, 1.5]]}},
        {"curves": {"": [[-2.0, -1.0], [-0.5, 1.0]]}},
        {"curves": {"": [[-math.inf, -1.0], [0.0, 1.0]]}},
        {"curves": {"": [-1.0, 0.0]}},
        {"curves": [curve]},
    ):
        with pytest.raises(FormatError, match="not the numbers of a calibration of truths"):
            TruthCalibration.from_state(wrong)


def test_bad_pairs_are_refused():
    with pytest.raises(ValueError, match="needs validation queries"):
        TruthCalibration.fit({})
    for bad in (0.1, math.nan):
        with pytest.raises(ValueError, match=r"logs at most 0 \(structure 2p\)"):
            TruthCalibration.fit({"2p": TruthPairs([bad], [True])})


def test_answers_have_probabilities_and_improbable_ones_are_not_given():
    links, _ = random_links(0, 8)
    scorer, calibration = EntityScorer(links), TruthCalibration.fit(draw(0))
    batch = QueryBatch.of("2p", torch.tensor([[0, 1, 2], [3, 0, 1]]))
    every = scorer.answer(batch, 8, calibration=calibration)
    for own in every:
        logs = torch.tensor([answer.truth for answer in own]).log()
        wanted = calibration.probability(logs, STRUCTURES["2p"])
        assert [answer.probability for answer in own] == pytest.approx(wanted.tolist(), abs=1e-5)
    bound = every[0][2].probability
    some = scorer.answer(batch, 8, calibration=calibration, min_probability=bound)
    assert some == [[a for a in own if a.probability >= bound] for own in every]
    assert all(a.probability is None for own in scorer.answer(batch) for a in own)
    low = TruthCalibration({"": np.array([[-700.0, 0.0], [0.01, 0.01]])})
    assert scorer.answer(batch, calibration=low, min_probability=0.5) == [[], []]
    with pytest.raises(ValueError, match="'min_probability' must be between 0 and 1"):
        scorer.answer(batch, calibration=calibration, min_probability=1.5)
    with pytest.raises(ValueError, match="'min_probability' needs a calibration"):
        scorer.answer(batch, min_probability=0.5)


def test_bins_and_error():
    p = [0.0, 0.1, 0.24, 0.25, 0.9, 1.0, 0.8]
    true = [False, False, True, True, True, True, False]
    table = ReliabilityTable.of(p, true, num_bins=4)
    assert table.lower.tolist() == [0, 0.25, 0.75]
    assert table.upper.tolist() == [0.25, 0.5, 1]
    assert table.count.tolist() == [3, 1, 3]
    np.testing.assert_allclose(table.predicted, [0.34 / 3, 0.25, 0.9])
    np.testing.assert_allclose(table.observed, [1 / 3, 1, 2 / 3])
    gaps = 3 * abs(0.34 / 3 - 1 / 3) + 0.75 + 3 * (0.9 - 2 / 3)
    assert table.expected_calibration_error == pytest.approx(gaps / 7)
    assert table.records()[1] == {
        "lower": 0.25,
        "upper": 0.5,
        "count": 1,
        "predicted": 0.25,
        "observed": 1,
    }
    assert repr(table).startswith("ReliabilityTable(3 bins, 7 predictions, expected calibration")


def test_what_comes_true_as_often_as_predicted_has_no_error():
    rng = np.random.default_rng(0)
    p = rng.random(200_000)
    assert ReliabilityTable.of(p, rng.random(p.size) < p).expected_calibration_error < 0.01
    assert ReliabilityTable.of([], []).expected_calibration_error == 0


@pytest.mark.parametrize(
    ("arguments", "more", "problem"),
    [
        (([0.5, 1.1], [1, 0]), {}, "between 0 and 1"),
        (([0.5, np.nan], [1, 0]), {}, "between 0 and 1"),
        (([0.5], [1, 0]), {}, "vectors of one length"),
        (([0.5], [1]), {"num_bins": 0}, "'num_bins' must be an integer of at least 1"),
    ],
)
def test_bad_predictions_are_refused(arguments, more, problem):
    with pytest.raises(ValueError, match=problem):
        ReliabilityTable.of(*arguments, **more)


def test_pairs_are_vectors_of_doubles():
    x, true = as_pairs(torch.tensor([1.0, 2.0]), [True, False])
    assert (x.tolist(), true.tolist()) == ([1, 2], [1, 0])
