"""Tables of Neo4j."""

import json
import warnings

import pytest

from sheafprop.data import parse_triples
from sheafprop.data.triple_blocks import triple_blocks
from sheafprop.errors import DataError


def read(text, name="f.csv", **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        rows = parse_triples(text.encode(), name, **options).tolist()
    return rows, "".join(str(warning.message) for warning in caught)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_relationships_of_neo4j_by_their_header(delimiter):
    text = ':START_ID,since:int,:END_ID,:TYPE\n1,2001,"2, or so",KNOWS\n2,,1,LIKES\n'
    if delimiter != ",":
        text = text.replace('"2, or so"', "2 or so").replace(",", delimiter)
    rows, said = read(text)
    assert rows == [
        ["1", "KNOWS", "2, or so" if delimiter == "," else "2 or so"],
        ["2", "LIKES", "1"],
    ]
    assert ("as the delimiter" in said) == (delimiter != ",")
    assert ":START_ID, :TYPE, :END_ID are used as head, relation and tail" in said


def test_ids_stand_behind_the_name_of_their_space():
    text = "a:START_ID(Person),:TYPE,:END_ID(Film){id-type:int}\n1,SAW,1\n"
    assert read(text)[0] == [["Person:1", "SAW", "Film:1"]]
    assert read(":START_ID(Person),:TYPE,:END_ID\n1,SAW,1\n")[0] == [["Person:1", "SAW", "1"]]
    # Also where the columns are named, so that nodes of one number stay two.
    columns = (":END_ID(Film){id-type:int}", ":TYPE", "a:START_ID(Person)")
    assert read(text, columns=columns)[0] == [["Film:1", "SAW", "Person:1"]]


def test_an_export_of_apoc_holds_nodes_too():
    text = '"_id","_labels","name","_start","_end","_type"\n"1",":P","Ada",,,\n,,,"1","2","KNOWS"\n'
    rows, said = read(text)
    assert rows == [["1", "KNOWS", "2"]]
    assert "skipped: nodes (1)" in said
    with pytest.raises(DataError, match=r"f\.csv, line 3: a label is empty"):
        read(text.replace('"2"', ""))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("id:ID,name,:LABEL", "this file holds nodes"),
        ("_id,_labels,name", "this file holds nodes"),
        ("id,category,name", "this file holds nodes"),
        ("entity,property,value", "this file holds literals.*--features"),
        (":START_ID,:END_ID,since", "missing :TYPE"),
        (":START_ID,:TYPE,x", "missing :END_ID"),
    ],
)
def test_other_files_of_neo4j_are_named(header, words):
    with pytest.raises(DataError, match=rf"f\.csv, line 1: .*{words}"):
        read(header + "\n1,2,3\n")
    assert read("1,2,3\n", header=False)[0] == [["1", "2", "3"]]


def test_columns_that_were_guessed_are_said_where_there_was_a_choice():
    assert "subject, predicate, object are used" in read("x,object,subject,predicate\n1,b,a,p\n")[1]
    assert "predicate" in read("predicate,subject,object\np,a,b\n")[1]
    assert read("subject,predicate,object\na,p,b\n") == ([["a", "p", "b"]], "")
    text = "x,object,subject,predicate\n1,b,a,p\n"
    assert read(text, columns="subject,predicate,object") == ([["a", "p", "b"]], "")


IRIS = (
    "<http://purl.obolibrary.org/obo/GO_1>\trdfs:label\tplain\n"
    "plain\thttp://www.w3.org/2000/01/rdf-schema#subClassOf\thttp://www.wikidata.org/entity/Q1\n"
)


def test_iris_in_tables_stay_with_a_note_until_prefixes_are_given():
    rows, said = read(IRIS, "f.tsv")
    assert rows[0][0] == "<http://purl.obolibrary.org/obo/GO_1>"
    assert f"f.tsv: labels of tables are not shortened, but {rows[0][0]!r} is 'GO:1'" in said
    assert said.count("--prefixes common") == 1
    for name, text in (("f.tsv", IRIS), ("f.csv", IRIS.replace("\t", ","))):
        short, said = read(text, name, prefixes="common")
        assert short == [["GO:1", "rdfs:label", "plain"], ["plain", "is_a", "wd:Q1"]]
        assert said == ""
    assert read(IRIS, "f.tsv", prefixes="none") == (rows, "")
    lines = [
        json.dumps(dict(zip(("subject", "predicate", "object"), row, strict=True))) for row in rows
    ]
    assert read("\n".join(lines), "f.jsonl", prefixes="common")[0] == short
    assert " is 'GO:1' in files of" in read("\n".join(lines), "f.jsonl")[1]


def test_iris_in_pieces_of_tables_are_those_of_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("sheafprop.data.triple_blocks._BLOCK", 100)
    path = tmp_path / "f.tsv"
    path.write_text(IRIS * 3)
    for prefixes, begin in (("common", "GO:1"), (None, "<http://purl")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
            blocks = list(triple_blocks(path, prefixes=prefixes))
        heads = [block.labels(row)[0] for block in blocks for row in range(len(block))]
        assert len(heads) == 6
        assert all(head.startswith(begin) for head in heads[::2])
        assert sum("--prefixes common" in str(w.message) for w in caught) == (prefixes is None)
