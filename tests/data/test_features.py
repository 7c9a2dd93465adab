import json
import warnings

import numpy as np
import pandas as pd
import pytest

from sheafprop.data import FeatureTable, read_features
from sheafprop.data.features import Column
from sheafprop.errors import DataError


def kinds(table):
    return {column.name: column.kind for column in table.columns}


def column(table, name):
    return next(c for c in table.columns if c.name == name)


def test_a_key_follows_labels_and_values_but_not_their_order(tmp_path):
    frame = pd.DataFrame(
        {"size": [1.5, np.nan, 2], "kind": [("x", "y"), None, ("z",)]}, index=["a", "b", "c"]
    )
    key = FeatureTable.of(frame).key()
    again = frame.iloc[[2, 0, 1]][["kind", "size"]]
    again["kind"] = [("z",), ("y", "x"), None]
    assert FeatureTable.of(again, "elsewhere").key() == key
    changes = [
        frame.assign(size=[1.5, np.nan, 3]),
        frame.assign(size=[1.5, 0, 2]),
        frame.assign(kind=[("x",), None, ("z",)]),
        frame.rename(columns={"size": "length"}),
        frame.rename(index={"b": "d"}),
        frame[["size"]],
    ]
    assert len({FeatureTable.of(change).key() for change in changes} - {key}) == len(changes)


def test_frames_parquet_and_arrays_hold_the_same(tmp_path):
    frame = pd.DataFrame(
        {
            "size": [1.0, None, 3.0],
            "is_port": [True, False, True],
            "kind": [["city"], None, ["port", "city", "port"]],
            "text": [np.array([1.0, 2.0]), None, [3.0, 4.5]],
            "when": pd.to_datetime(["1970-01-02", None, "1969-12-31"]),
        },
        index=["a", "b", "c"],
    )
    first = FeatureTable.of(frame)
    path = tmp_path / "features.parquet"
    frame.rename_axis("label").reset_index().to_parquet(path)
    for table in (first, read_features(path), FeatureTable.of(frame.reset_index())):
        assert table.labels == ("a", "b", "c")
        assert kinds(table) == {
            "size": "number",
            "is_port": "number",
            "kind": "types",
            "text": "vector",
            "when": "number",
        }
        assert column(table, "kind").values.tolist() == [("city",), None, ("port", "city")]
        np.testing.assert_array_equal(
            column(table, "text").values, [[1, 2], [np.nan, np.nan], [3, 4.5]]
        )
        np.testing.assert_array_equal(column(table, "when").values, [1, np.nan, -1])
    assert FeatureTable.of(first) is first
    array = tmp_path / "text.npy"
    np.save(array, np.array([[1, 2], [3, 4]], dtype=np.float32))
    (tmp_path / "text.npy.labels.txt").write_text("a\nb\n")
    assert read_features(array).labels == ("a", "b")
    (tmp_path / "text.npy.labels.json").write_text(json.dumps(["c", 7]))
    assert read_features(str(array)).labels == ("c", "7")


def test_what_is_no_table_of_features_is_refused():
    with pytest.raises(DataError, match=r"a file or a data frame .*\(got list\)$"):
        FeatureTable.of([1, 2])
    with pytest.raises(DataError, match=r"got ndarray\); give rows of a tensor by DataFrame"):
        FeatureTable.of(np.ones((2, 3)))
    with pytest.raises(DataError, match=r"the labels of the entities are missing"):
        FeatureTable.of(pd.DataFrame(np.ones((2, 3))))
    with pytest.raises(DataError, match=r"same length \(got 2 and, at 'b', 1\)"):
        FeatureTable.of(pd.DataFrame({"t": [[1.0, 2.0], [3.0]]}, index=["a", "b"]))
    with pytest.raises(DataError, match=r"row 0: .* must hold only numbers, only text, or lists"):
        FeatureTable.of(pd.DataFrame({"t": [object(), 1.0]}, index=["a", "b"]))
    with pytest.raises(DataError, match=r"exists more than once"):
        FeatureTable(("a",), (Column("x", "number", np.ones(1)),) * 2)
    with pytest.raises(DataError, match=r"at least one column of features"):
        FeatureTable.of(pd.DataFrame({"id": ["a"]}))
    with pytest.raises(DataError, match=r"row 1: 't' must hold vectors of numbers \(got .* 'b'\)"):
        FeatureTable.of(pd.DataFrame({"t": [[1.0, 2.0], [{}, 2.0]]}, index=["a", "b"]))
    with pytest.raises(DataError, match=r"row 2: the column 't' must hold .* \(got -inf at 'c'\)"):
        FeatureTable.of(pd.DataFrame({"t": [1.0, 2.0, -np.inf]}, index=["a", "b", "c"]))
    with pytest.raises(DataError, match=r"row 1: the column 'v' must hold .* \(got inf at 'b'\)"):
        FeatureTable.of(pd.DataFrame({"v": [[1.0, 2.0], [3.0, np.inf]]}, index=["a", "b"]))


def test_frames_warn_of_numbers_that_stand_for_none():
    frame = pd.DataFrame({"year": [1990, 9999, 2005], "code": ["9999", "12", "13"]}, index=[*"abc"])
    with pytest.warns(UserWarning, match=r"row 1: 'year' is 9999 at 'b'"):
        FeatureTable.of(frame[["year"]])
    with pytest.warns(UserWarning, match=r"row 0: 'code' is 9999 at 'a'"):
        FeatureTable.of(frame[["code"]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FeatureTable.of(frame[["code"]].replace("9999", "11"))
        FeatureTable.of(pd.DataFrame({"size": [100, 900, 999, 99]}, index=[*"abcd"]))
        # Nothing to compare with.
        FeatureTable.of(pd.DataFrame({"year": [999.0, np.nan]}, index=["a", "b"]))
