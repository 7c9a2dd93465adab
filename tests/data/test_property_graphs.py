"""Relationships and nodes of Neo4j and KGX, and files that share a header."""

import gzip
import warnings

import pytest

from sheafprop.data.property_graphs import node_columns, read_nodes, split_group
from sheafprop.data.triple_blocks import triple_blocks
from sheafprop.data.triple_files import read_files
from sheafprop.data.triples import read_located
from sheafprop.errors import DataError

HEADER = ":START_ID(Person),since:int,:END_ID(Film),:TYPE\n"
PARTS = ['1,2001,"2, or so",SAW\n2,,2,MADE\n', "\n3,,1,SAW\n"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h.csv").write_text(HEADER)
    for number, part in enumerate(PARTS):
        (tmp_path / f"p{number}.csv").write_text(part)
    (tmp_path / "p2.csv.gz").write_bytes(gzip.compress(b"4,,1,SAW\n"))
    return tmp_path


def read(path, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        located = read_located(path, **options)
    return located, "".join(str(warning.message) for warning in caught)


def test_a_header_in_a_file_of_its_own(folder):
    located, said = read("h.csv,p0.csv,p1.csv,p2.csv.gz")
    assert located.rows.tolist() == [
        ["Person:1", "SAW", "Film:2, or so"],
        ["Person:2", "MADE", "Film:2"],
        ["Person:3", "SAW", "Film:1"],
        ["Person:4", "SAW", "Film:1"],
    ]
    places = [located.place(row) for row in range(4)]
    assert places == ["p0.csv, line 1", "p0.csv, line 2", "p1.csv, line 2", "p2.csv.gz, line 1"]
    assert said.count("are used as head, relation and tail") == 1
    # Also where the first file holds rows, as in pieces.
    (folder / "all.csv").write_text(HEADER + PARTS[0])
    rows = read("all.csv,p1.csv")[0].rows.tolist()
    assert rows == located.rows[:3].tolist()
    blocks = list(triple_blocks("h.csv,p0.csv"))
    found = [block.labels(row) for block in blocks for row in range(len(block))]
    assert found == located.rows[:2].tolist()


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_the_header_says_what_separates_fields(folder, delimiter):
    for name in ("h.csv", "p1.csv"):
        path = folder / name
        path.write_text(path.read_text().replace(",", delimiter))
    assert read("h.csv,p1.csv")[0].rows.tolist() == [["Person:3", "SAW", "Film:1"]]


def test_a_header_of_other_names_and_of_columns_that_are_named(folder):
    (folder / "h.csv").write_text("subject,x,object,predicate\n")
    assert read("h.csv,p1.csv")[0].rows.tolist() == [["3", "SAW", "1"]]
    (folder / "h.csv").write_text("a,x,b,c\n")
    with pytest.raises(DataError, match=r"h\.csv, line 1: a common header of files must name"):
        read("h.csv,p1.csv")
    assert read("h.csv,p1.csv", columns="b,c,a")[0].rows.tolist() == [["1", "SAW", "3"]]


def test_a_type_before_the_files(folder):
    (folder / "knows.csv").write_text(":START_ID,:END_ID,since\n1,2,x\n")
    with pytest.raises(DataError, match=r"missing :TYPE.*give the type as TYPE=FILE"):
        read("knows.csv")
    assert read("KNOWS WELL=knows.csv")[0].rows.tolist() == [["1", "KNOWS WELL", "2"]]
    (folder / "h.csv").write_text(":START_ID,:END_ID\n")
    (folder / "p0.csv").write_text("1,2\n2,1\n")
    located, said = read(f"LIKES={folder}/h.csv,{folder}/p0.csv")
    assert located.rows.tolist() == [["1", "LIKES", "2"], ["2", "LIKES", "1"]]
    assert ":START_ID, :END_ID are used" in said


def test_what_is_wrong_is_named_with_its_file(folder):
    with pytest.raises(DataError, match=r"h\.csv, line 1: .*give them together as h\.csv,FILE"):
        read("h.csv")
    (folder / "p1.csv").write_text("1,2\n")
    with pytest.raises(DataError, match=r"p1\.csv, line 1: expected 4 comma-separated fields"):
        read("h.csv,p0.csv,p1.csv")
    with pytest.raises(DataError, match=r"missing\.csv: cannot be read"):
        read("h.csv,missing.csv")
    (folder / "p1.csv").write_text("\n")
    with pytest.raises(DataError, match=r"h\.csv, p1\.csv: the files hold no triples"):
        read("h.csv,p1.csv")


def test_a_file_whose_name_looks_like_a_group_is_a_file(folder):
    (folder / "x=h.csv,p0.csv").write_text("a\tr\tb\n")
    assert read("x=h.csv,p0.csv", format="tsv")[0].rows.tolist() == [["a", "r", "b"]]
    for name in ("h.csv", "none.csv,p0.csv", "a=none.csv"):
        assert split_group(name) is None


def literals(path):
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        located = read_files([path], literals=lambda *row: found.append(row))
    return found, located.rows.tolist(), "".join(str(w.message) for w in caught)


@pytest.mark.parametrize(
    ("header", "row", "found"),
    [
        (
            "name,id:ID(P){id-type:int},:LABEL,tags:string[],age:int,:IGNORE,skip:IGNORE",
            "Ada,1,A;B,x;y,,i,j",
            [("name", "Ada"), ("label", "A"), ("label", "B"), ("tags", "x"), ("tags", "y")],
        ),
        (":ID(P),note{x}", '1,"a; ""b"""', [("note", 'a; "b"')]),
        ("x:double,:ID(P)", " 1.5 ,1", [("x", "1.5")]),
    ],
)
def test_nodes_of_neo4j_are_literals(tmp_path, header, row, found):
    path = tmp_path / "n.csv"
    path.write_text(f"{header}\n{row}\n")
    got, triples, said = literals(path)
    assert sorted(got) == sorted(("P:1", name, value) for name, value in found)
    assert triples == []
    assert f"nodes read (1); literals written ({len(found)})" in said
    assert read_nodes(path)[0] == header.split(",")


def test_nodes_of_apoc_and_of_kgx_are_literals(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("_id,_labels,name,_start,_end,_type\n1,:P:Q,Ada,,,\n,,,1,2,KNOWS\n2,:P,,,,\n")
    got, triples, said = literals(path)
    assert triples == [["1", "KNOWS", "2"]]
    assert got == [
        ("1", "label", "P"),
        ("1", "label", "Q"),
        ("1", "name", "Ada"),
        ("2", "label", "P"),
    ]
    assert "nodes read (2)" in said
    assert "left out" not in said
    path = tmp_path / "n.tsv"
    # Rows may lack their last fields, as in files that KGX wrote.
    path.write_text("id\tname\tcategory\txref\nX:1\tone\tA|B\nX:2\t\tA\tY:1\n")
    got, _, _ = literals(path)
    assert got == [
        *[("X:1", "name", "one"), ("X:1", "category", "A"), ("X:1", "category", "B")],
        *[("X:2", "category", "A"), ("X:2", "xref", "Y:1")],
    ]
    path.write_text("id\tname\tcategory\nX:1\tone\tA\tB\n")
    with pytest.raises(
        DataError, match=r"n\.tsv, line 2: expected 3 tab.*as in the header.* got 4"
    ):
        literals(path)


def test_nodes_of_a_group_have_its_header_and_its_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h.csv").write_text("id:ID(P),name\n")
    (tmp_path / "n.csv").write_text("1,Ada\n2,Ben\n")
    got, _, _ = literals("Person:Admin=h.csv,n.csv")
    assert ("P:2", "name", "Ben") in got
    assert [row for row in got if row[0] == "P:1"] == [
        *[("P:1", "name", "Ada"), ("P:1", "label", "Person"), ("P:1", "label", "Admin")]
    ]
    names, columns, located = read_nodes("Person:Admin=h.csv,n.csv")
    assert (names, columns.space) == (["id:ID(P)", "name"], "P")
    assert located.rows.tolist() == [["1", "Ada"], ["2", "Ben"]]
    assert located.place(1) == "n.csv, line 2"
    with pytest.raises(
        DataError, match=r"n\.csv: a node file must start with a header.*got '1,Ada'"
    ):
        read_nodes("n.csv")
    with pytest.raises(DataError, match=r"h\.csv: the files hold no nodes"):
        read_nodes("h.csv")


def test_other_headers_are_no_nodes():
    for names in (["a", "b"], ["id", "name"], [":START_ID", ":END_ID"], ["_id"], ["x:ID", "y:ID"]):
        assert node_columns(names) is None
