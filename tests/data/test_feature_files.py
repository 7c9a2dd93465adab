import csv
import lzma

import numpy as np
import pandas as pd
import pytest

from sheafprop.data import read_features
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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id,size\na,1\nb,2\na,3\n", "line 4: every label must have one row (got 'a' again, "),
        ("id,size\na,1\n\n,2\n", "line 4: the label is empty"),
        (
            "id,size\na,1\n\nb,inf\n",
            "line 4: the column 'size' must hold finite numbers (got inf at 'b')",
        ),
        (
            "id,size\na,1\nb,-1e999\n",
            "line 3: the column 'size' must hold finite numbers (got -inf at 'b')",
        ),
        (
            'id,size\na,1\n"b\nc",2\nd,5\ne,about 3\n',
            "line 6: the column 'size' holds 3 numbers and 'about 3' at 'e'; leave",
        ),
        (
            "id,size\na,1\nb,2\nc,?\nd,x\ne,3\n",
            "line 4: the column 'size' holds 3 numbers and '?' at 'c', and 1 more such cell",
        ),
        (
            'id,size\na,"1,5"\nb,"2,25"\n',
            "'1,5' at 'a', and 1 more such cell; write numbers with a point",
        ),
        (
            "entity,property,value\na,age,3\nb,age,4\na,age,old\n",
            "line 4: the column 'age' holds 2 numbers and 'old' at 'a'; leave a cell",
        ),
        (
            "entity,property,value\na,age,3\nb,age,inf\n",
            "line 3: the column 'age' must hold finite numbers (got inf at 'b')",
        ),
        ("id,size,size\na,1,2\n", "the column 'size' exists more than once"),
        ("id\na\nb\n", "line 1: expected a header"),
        ("id,size\na,1,2\n", "line 2: expected 2 fields"),
        ("", "line 1"),
        ("id,size\na\n", "line 2: expected 2 fields"),
        ('id,"size\na,1\n', "features.csv"),
    ],
)
def test_malformed_files_are_named_with_the_place(tmp_path, text, problem):
    path = tmp_path / "features.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_features(path)
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_csv_with_another_separator_is_read_and_reported(tmp_path, separator):
    path = tmp_path / "features.csv"
    path.write_text("id,size,kind\na,1.5,x|y\nb,,x\n".replace(",", separator))
    with pytest.warns(UserWarning, match="is used as the delimiter"):
        table = read_features(path)
    assert table.labels == ("a", "b")
    assert kinds(table) == {"size": "number", "kind": "types"}
    path.write_text(f"id{separator}size\na{separator}1,5\nb{separator}2,25\n")
    with (
        pytest.warns(UserWarning, match="is used as the delimiter"),
        pytest.raises(DataError, match="with a point"),
    ):
        read_features(path)


def test_arrays_and_tables_that_are_no_features(tmp_path):
    path = tmp_path / "text.npy"
    np.save(path, np.ones((2, 3)))
    with pytest.raises(DataError, match=r"labels of the rows are missing"):
        read_features(path)
    (tmp_path / "text.npy.labels.txt").write_text("a\nb\nc\n")
    with pytest.raises(DataError, match=r"got 3 labels and 2 rows"):
        read_features(path)
    for wrong in (np.ones(3), np.ones((2, 2), dtype=complex), np.array([["a"]])):
        np.save(path, wrong)
        with pytest.raises(DataError, match=r"real matrix"):
            read_features(path)
    path.write_bytes(b"\x93NUMPY nothing")
    with pytest.raises(DataError, match=r"not an array"):
        read_features(path)
    with pytest.raises(DataError, match=r"cannot be read"):
        read_features(tmp_path / "no.csv")
    (tmp_path / "x.parquet").write_bytes(b"PAR0")
    with pytest.raises(DataError, match=r"not a Parquet"):
        read_features(tmp_path / "x.parquet")


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


def test_a_number_far_from_all_others_that_often_stands_for_none_is_reported(tmp_path):
    path = tmp_path / "features.tsv"
    rows = [("a", 12.5, 1), ("b", -999, 999), ("c", 80, 1200), ("d", -999, 3), ("e", -30, 99)]
    lines = ["id\tnorth\tsize", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    expected = r"features.tsv, line 3: 'north' is -999 at 'b' and 1 more, .* between -30 and 80;"
    with pytest.warns(UserWarning, match=expected) as caught:
        read_features(path)
    assert len(caught) == 1  # sizes go on to 1200
    long = tmp_path / "long.csv"
    cells = "".join(f"{label},north,{north}\n" for label, north, _ in rows)
    long.write_text("entity,property,value\n" + cells)
    with pytest.warns(UserWarning, match=r"long.csv, line 3: 'north' is -999 at 'b' and 1"):
        read_features(long)


def test_a_first_line_of_numbers_is_reported(tmp_path):
    path = tmp_path / "features.csv"
    path.write_text("a,1,2\nb,3,4\n")
    with pytest.warns(UserWarning, match=r"line 1: the first line must hold the names of"):
        assert read_features(path).labels == ("b",)


def test_cells_may_hold_quoted_separators_and_blank_lines_count_for_nothing(tmp_path):
    path = tmp_path / "features.csv"
    path.write_text('id,kind\n"a,\nb","x;y"\n\n,\nc,"z;"\n')
    table = read_features(path)
    assert table.labels == ("a,\nb", "c")
    assert table.columns[0].values.tolist() == [("x", "y"), ("z",)]
    assert [table.place(row) for row in range(2)] == [f"{path}, line {n}" for n in (2, 6)]
    assert table.select(["c"]).place(0) == f"{path}, line 6"
    literal = tmp_path / "features.tsv"
    literal.write_text('id\tkind\na"\tx\n')
    assert read_features(literal).labels == ('a"',)


def test_nodes_of_property_graphs_are_features(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.csv").write_text("name,id:ID(P),born:int,:LABEL\nAda,1,1815,A;B\n,2,,A\n,3,,\n")
    table = read_features("n.csv")
    assert table.labels == ("P:1", "P:2")
    born, label = (next(c for c in table.columns if c.name == name) for name in ("born", "label"))
    assert (born.kind, born.values[0]) == ("number", 1815)
    assert np.isnan(born.values[1])
    assert label.values.tolist() == [("A", "B"), ("A",)]
    (tmp_path / "h.csv").write_text("id:ID(P),born:int\n")
    (tmp_path / "p.csv").write_text("1,1815\n2,1791\n3,1800\n")
    table = read_features("A=h.csv,p.csv")
    assert table.labels == ("P:1", "P:2", "P:3")
    assert [column.name for column in table.columns] == ["born", "label"]
    (tmp_path / "p.csv").write_text("1,1815\n2,1791\n3,inf\n")
    with pytest.raises(DataError, match=r"p\.csv, line 3"):
        read_features("A=h.csv,p.csv")
    # Rows of KGX may lack their last fields.
    (tmp_path / "n.tsv").write_text("id\tcategory\tsize\nX:1\tA|B\t3\nX:2\tA\n")
    table = read_features("n.tsv")
    assert table.labels == ("X:1", "X:2")
    assert [column.kind for column in table.columns] == ["types", "number"]
