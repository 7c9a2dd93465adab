import numpy as np
import pytest
import torch

from sheafprop.query import ReliabilityTable
from sheafprop.query.reliability import as_pairs


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
