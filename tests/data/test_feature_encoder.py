import numpy as np
import pandas as pd
import pytest

from sheafprop.data import FeatureTable
from sheafprop.data.feature_encoder import FeatureEncoder
from sheafprop.errors import DataError


def table(**columns):
    count = len(next(iter(columns.values())))
    return FeatureTable.of(pd.DataFrame(columns, index=[f"e{i}" for i in range(count)]))


TRAIN = table(
    size=[1.0, 2.0, 3.0, 4.0, 1000.0, None],
    kind=["a|b", "a", "b", "", "a", "c"],
    same=[7.0] * 6,
    text=[[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0], None, [4.0, 1.0]],
)


def test_numbers_are_scaled_by_median_and_range_and_gaps_stay_zero():
    encoder = FeatureEncoder.fit(TRAIN)
    rows, known = encoder.encode(TRAIN)
    assert rows.shape == (6, encoder.width)
    assert known.all()
    size, kind, same, text = encoder.columns
    assert (size.center, size.scale) == ((3.0,), (2 / 1.349,))
    expected = np.arcsinh((np.array([1, 2, 3, 4, 1000]) - 3) / size.scale[0])
    np.testing.assert_allclose(rows[:5, 0], expected)
    assert rows[5, :2].tolist() == [0, 0]
    assert rows[:5, 1].tolist() == [1] * 5
    # 'c' is there once, so that nothing is known of it beside that entity.
    assert kind.types == ("a", "b")
    assert rows[:, 2:5].tolist() == [
        [1, 1, 1],
        [1, 0, 1],
        [0, 1, 1],
        [0, 0, 0],
        [1, 0, 1],
        [0, 0, 1],
    ]
    assert not same.has_gaps
    assert rows[:, 5].tolist() == [0] * 6
    assert text.width == 3
    assert rows[4, 6:].tolist() == [0, 0, 0]
    assert rows[:, 7].tolist() == [0] * 6
    assert FeatureEncoder.from_dict(encoder.to_dict()) == encoder


def test_columns_are_found_by_name_whatever_their_order():
    encoder = FeatureEncoder.fit(TRAIN)
    rows, _ = encoder.encode(TRAIN)
    turned = FeatureTable(TRAIN.labels, TRAIN.columns[::-1])
    np.testing.assert_array_equal(encoder.encode(turned)[0], rows)
    order = "the columns are in another order than in training; matched by name"
    assert encoder.notes(turned)[0] == order
    assert order not in encoder.notes(TRAIN)
    assert encoder.notes(TRAIN)[0].startswith("1 type of 'kind'")
    some = FeatureTable(TRAIN.labels, TRAIN.columns[:1])
    less, known = encoder.encode(some)
    np.testing.assert_array_equal(less[:, :2], rows[:, :2])
    assert not less[:, 2:].any()
    assert known.tolist() == [True] * 5 + [False]
    (note,) = encoder.notes(some)
    assert "3 columns of the model missing here" in note


@pytest.mark.parametrize(
    ("size", "found"),
    [
        ([2.0, 3.0, 2.5], False),
        ([900.0], False),
        ([2000.0, 3000.0, 2500.0], True),
        ([0.002, 0.003, 0.0025], True),
        ([3e6], True),
        ([7000.0], True),  # six times the range of training above it
        ([5000.0], False),
        ([-9000.0, 2.0, 3.0], True),
        ([None, None, None], False),
    ],
)
def test_another_unit_is_reported(size, found):
    encoder = FeatureEncoder.fit(TRAIN)
    given = table(size=pd.Series(size, dtype=float).to_numpy(), same=[7.0] * len(size))
    notes = [note for note in encoder.notes(given) if "differ from those in training" in note]
    assert bool(notes) == found
    assert not found or "'size'" in notes[0]


def test_numbers_of_any_size_stay_finite():
    given = table(size=[1e-3, 2e-3, 3e-3, 4e-3], text=[[0.0], [1e-9], [2e-9], [3e-9]])
    encoder = FeatureEncoder.fit(given)
    far = table(size=[1.7e308, -1.7e308], text=[[1.7e308], [-1.7e308]])
    rows, _ = encoder.encode(far)
    assert np.isfinite(rows).all()
    assert rows[0].min() > 500 > -500 > rows[1].max()


def test_the_furthest_number_is_named_with_its_entity():
    encoder = FeatureEncoder.fit(TRAIN)
    (note,) = encoder.notes(table(size=[2.0, -9000.0, 3.0], same=[7.0] * 3))[1:]
    assert "from 1 to 1e+03; furthest: -9000 at 'e1')" in note
    # A model that was stored without the range of training.
    stored = encoder.to_dict()
    for column in stored["columns"]:
        del column["low"], column["high"]
    old = FeatureEncoder.from_dict(stored)
    assert len(old.notes(table(size=[-9000.0], same=[7.0]))) == 1
    (note,) = old.notes(table(size=[3e6], same=[7.0]))[1:]
    assert "at most 1e+03; furthest: 3e+06 at 'e0'" in note


def test_types_may_look_like_numbers_where_training_had_types():
    encoder = FeatureEncoder.fit(table(code=["012|7", "012", "7|5", "5"]))
    rows, known = encoder.encode(table(code=["012", "", "5", "12"]))
    assert encoder.columns[0].types == ("012", "5", "7")
    assert rows.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert known.tolist() == [True, False, True, True]


def test_unknown_columns_and_other_kinds():
    encoder = FeatureEncoder.fit(TRAIN)
    more = table(size=[1.0], colour=["red"])
    assert encoder.notes(more)[0] == "1 column unknown to the model and ignored: 'colour'"
    with pytest.raises(DataError, match=r"must be a feature of the model"):
        encoder.encode(table(colour=["red"]))
    with pytest.raises(
        DataError,
        match=r"row 0: .* 'size' must have .*: number \(got types, such as 'big' at 'e0'\)",
    ):
        encoder.encode(table(size=["big", "small"]))
    with pytest.raises(DataError, match=r"vector of 2 \(got vector of 3\)"):
        encoder.encode(table(text=[[1.0, 2.0, 3.0]]))
    # A column of gaps alone has no kind of its own.
    rows, known = encoder.encode(table(size=["", ""], kind=[None, None], text=[None, None]))
    assert not rows.any()
    assert not known.any()
