"""JSON lines, as KGX writes them."""

import json
import warnings

import pytest

from sheafprop.data import parse_triples
from sheafprop.data.triples import read_located
from sheafprop.errors import DataError

EDGE = {"id": "e1", "subject": "HGNC:1", "predicate": "biolink:related_to", "object": "HGNC:2"}
NODE = {"id": "HGNC:1", "name": "one", "category": ["A", "B"], "size": 3, "is": True, "no": None}


def read(*values, **options):
    text = "\n".join(v if isinstance(v, str) else json.dumps(v) for v in values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parse_triples(text.encode(), "f.jsonl", **options).tolist()


def test_edges_are_facts_and_nodes_have_literals(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text("\ufeff" + "\r\n".join(["", json.dumps(NODE), json.dumps(EDGE), ""]))
    found = []
    with pytest.warns(UserWarning, match=r"literals written \(5\); skipped: nodes \(1\)"):
        rows = read_located(path, literals=lambda *row: found.append(row))
    assert rows.rows.tolist() == [["HGNC:1", "biolink:related_to", "HGNC:2"]]
    assert rows.place(0).endswith("f.jsonl, line 3")
    values = [("name", "one"), ("category", "A"), ("category", "B"), ("size", "3"), ("is", "true")]
    assert found == [("HGNC:1", *value) for value in values]


def test_keys_may_have_any_names_and_order():
    assert read({"t": 3, "h": "1", "r": "x"}) == [["1", "x", "3"]]
    edge = {"from": "a", "kind": "k", "to": "b"}
    assert read(edge, columns="from,kind,to") == [["a", "k", "b"]]
    assert read(edge, NODE, columns="to,kind,from") == [["b", "k", "a"]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not valid JSON: "),
        ("[" * 100_000, "not valid JSON: "),
        ('["a", "b", "c"]', "expected a JSON object"),
        ('{"subject": "a", "subject": "b"}', "the key 'subject' occurs twice"),
        ({**EDGE, "object": None}, "must be strings or integers, and not empty"),
        ({**EDGE, "object": ""}, "must be strings or integers, and not empty"),
        ({**EDGE, "subject": 1.5}, "must be strings or integers, and not empty"),
        ({**EDGE, "predicate": ["p"]}, "must be strings or integers, and not empty"),
        ({"subject": "a", "object": "b"}, "expected an edge"),
    ],
)
def test_other_lines_are_named(line, words):
    with pytest.raises(DataError, match=rf"(?s)f\.jsonl, line 2: .*{words}.*got '"):
        read(EDGE, line, format="jsonl")


def test_missing_keys_and_bytes_are_named():
    with pytest.raises(DataError, match=r"f\.jsonl, line 1: the column 'x' does not exist"):
        read({"h": 1}, columns="x,y,z")
    with pytest.raises(DataError, match=r"f\.jsonl, line 2: not UTF-8 text \(byte 0xff\)"):
        parse_triples(json.dumps(EDGE).encode() + b'\n{"a": "\xff"}\n', "f.jsonl", format="jsonl")
