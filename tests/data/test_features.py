import csv
import json
import lzma

import numpy as np
import pandas as pd
import pytest

from sheafprop.data import FeatureTable, read_features
from sheafprop.data.features import Column
from sheafprop.errors import DataError

TEXT = (
    "id,size,kind,born\n"
    "a,1.5,city|port,1900\n"
    'b,,"city",NA\n'
    "c,-2e3,,1950.5\n"
)  # fmt: skip


def kinds(table):
    return {column.name: column.kind for column in table.columns}


def column(table, name):
    return next(c for c in table.columns if c.name == name)


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.xz"])
def test_numbers_types_and_gaps_of_text_files(tmp_path, ending):
    text = TEXT.replace(",", "\t").replace(chr(34), "") if ending == "tsv" else TEXT
    text = "\ufeff" + text.replace("\n", "\r\n")
    path = tmp_path / f"features.{ending}"
    content = text.encode()
    path.write_bytes(lzma.compress(content) if ending.endswith("xz") else content)
    table = read_features(path)
    assert table.labels == ("a", "b", "c")
    assert kinds(table) == {"size": "number", "kind": "types", "born": "number"}
    np.testing.assert_array_equal(column(table, "size").values, [1.5, np.nan, -2000])
    assert column(table, "kind").values.tolist() == [("city", "port"), ("city",), None]
    assert column(table, "born").present().tolist() == [True, False, True]
    part = table.select(["x", "c", "a"])
    assert part.labels == ("c", "a")
    assert column(part, "born").values.tolist() == [1950.5, 1900]
    assert table.lookup(["c", "x"]).tolist() == [2, -1]
    assert "3 entities" in repr(table)


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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id,size\na,1\nb,2\na,3\n", "every label must have one row (got 'a' in rows 0 and 2)"),
        ("id,size\na,1\n,2\n", "row 1 has an empty label"),
        ("id,size\na,1\nb,inf\n", "the column 'size' is infinite at 'b'"),
        ("id,size,size\na,1,2\n", "the column 'size' is there several times"),
        ("id\na\nb\n", "line 1: expected a header"),
        ("id,size\na,1,2\n", "line 2: expected 2 fields"),
        ("", "line 1"),
        ("id,size\na\n", "line 2: expected 2 fields"),
        ("id,\"size\na,1\n", "features.csv"),
    ],
)  # fmt: skip
def test_malformed_files_are_named_with_the_place(tmp_path, text, problem):
    path = tmp_path / "features.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_features(path)
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


def test_arrays_and_objects_that_are_no_features(tmp_path):
    path = tmp_path / "text.npy"
    np.save(path, np.ones((2, 3)))
    with pytest.raises(DataError, match=r"labels of the rows are missing"):
        read_features(path)
    (tmp_path / "text.npy.labels.txt").write_text("a\nb\nc\n")
    with pytest.raises(DataError, match=r"got 3 labels and 2 rows"):
        read_features(path)
    for wrong in (np.ones(3), np.ones((2, 2), dtype=complex), np.array([["a"]])):
        np.save(path, wrong)
        with pytest.raises(DataError, match=r"matrix of real numbers"):
            read_features(path)
    path.write_bytes(b"\x93NUMPY nothing")
    with pytest.raises(DataError, match=r"no array"):
        read_features(path)
    with pytest.raises(DataError, match=r"cannot be read"):
        read_features(tmp_path / "no.csv")
    (tmp_path / "x.parquet").write_bytes(b"PAR0")
    with pytest.raises(DataError, match=r"not a Parquet"):
        read_features(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"a file or a frame"):
        FeatureTable.of([1, 2])
    with pytest.raises(DataError, match=r"one length \(got 2 and, at 'b', 1\)"):
        FeatureTable.of(pd.DataFrame({"t": [[1.0, 2.0], [3.0]]}, index=["a", "b"]))
    with pytest.raises(DataError, match=r"neither numbers nor text"):
        FeatureTable.of(pd.DataFrame({"t": [object(), 1.0]}, index=["a", "b"]))
    with pytest.raises(DataError, match=r"several times"):
        FeatureTable(("a",), (Column("x", "number", np.ones(1)),) * 2)
    with pytest.raises(DataError, match=r"no column of features"):
        FeatureTable.of(pd.DataFrame({"id": ["a"]}))


def test_a_file_with_a_line_for_each_value_has_a_column_for_each_property(tmp_path):
    rows = [
        ("a", "height", "2.5"),
        ("b", "name@en", "one; two | three"),
        ("a", "name@en", "x"),
        ("a", "height", "3.5"),
        ("c", "height", "NA"),
        ("a", "name@en", "y"),
        ("a", "name@en", "x"),
    ]
    path = tmp_path / "literals.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("entity", "property", "value"), *rows])
    table = read_features(path)
    height, name = table.columns
    assert table.labels == ("a", "b", "c")
    assert (height.name, height.kind, name.name, name.kind) == (
        "height",
        "number",
        "name@en",
        "types",
    )
    np.testing.assert_array_equal(height.values, [3.0, np.nan, np.nan])
    assert list(name.values) == [("x", "y"), ("one; two | three",), None]


def test_tables_and_arrays_may_be_compressed_too(tmp_path):
    frame = pd.DataFrame({"entity": ["a", "b"], "size": [1.0, 2.0]})
    np.save(tmp_path / "x.npy", frame[["size"]].to_numpy())
    frame.to_parquet(tmp_path / "x.parquet")
    for name in ("x.npy", "x.parquet"):
        packed = tmp_path / f"{name}.xz"
        packed.write_bytes(lzma.compress((tmp_path / name).read_bytes()))
        (tmp_path / f"{packed.name}.labels.json").write_text('["a", "b"]')
        table = read_features(packed)
        assert table.labels == ("a", "b")
        np.testing.assert_array_equal(table.columns[0].values.ravel(), [1.0, 2.0])


def test_a_fault_in_a_table_is_not_taken_for_another_kind_of_file(tmp_path):
    pd.DataFrame({"entity": ["a", "a"], "size": [1.0, 2.0]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="every label must have one row") as raised:
        read_features(tmp_path / "x.parquet")
    assert "not a Parquet" not in str(raised.value)
