"""RDF: terms, ontologies, and what must not happen."""

import builtins
import gzip
import json
import re
import sys
import warnings

import pytest

from sheafprop.data import parse_triples
from sheafprop.data.triples import read_located
from sheafprop.errors import DataError

HEAD = (
    '<?xml version="1.0"?>\n<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"\n'
    '  xmlns:e="http://e/" xmlns:owl="http://www.w3.org/2002/07/owl#"\n'
    '  xmlns:rdfs="http://www.w3.org/2000/01/rdf-schema#">\n'
)


def read(text, name, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        content = text if isinstance(text, bytes) else text.encode()
        triples = parse_triples(content, name, **options).tolist()
    return triples, "".join(str(warning.message) for warning in caught)


def test_terms_of_n_triples():
    text = (
        "# a comment\r\n\r\n<http://e/a> <http://e/p> <http://e/caf\\u00e9> . # so\r\n"
        '<http://e/a> <http://e/p> "\\u00e9 \\"q\\"\\n"@en-GB .\r\n'
        '<http://e/a> <http://e/p> "3"^^<http://www.w3.org/2001/XMLSchema#integer> .\r\n'
        "_:b <http://e/p> <http://e/a> .\r\n<http://e/a> <http://e/p> _:b .\r\n"
        "<http://e/a> <http://e/p> <http://e/a> ."
    )
    triples, said = read(text, "f.nt")
    assert triples == [
        ["http://e/a", "http://e/p", "http://e/café"],
        ["http://e/a", "http://e/p", "http://e/a"],
    ]
    assert said == "f.nt: read as N-Triples; skipped: literals (2), triples of blank nodes (2)"


def test_lines_of_facts_are_those_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("sheafprop.data.formats.rdf._CHUNK", 40)  # less than a line
    path = tmp_path / "f.nt.gz"
    lines = [f"<http://e/{i}> <http://e/p> <http://e/{i + 1}> ." for i in range(9)]
    lines[4:4] = ["# comment", "", '<http://e/0> <http://e/n> "text" .']
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.warns(UserWarning, match="literals"):
        rows = read_located(path)
    assert [rows.place(i).rpartition(" ")[2] for i in range(9)] == list("1234") + list("89") + [
        "10",
        "11",
        "12",
    ]
    lines[7] = "<http://e/x> <http://e/p> <no iri> ."
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.raises(
        DataError, match=r"f\.nt\.gz, line 8: not valid N-Triples: .* \(got '<http://e/x>.*no iri"
    ):
        read_located(path)


def test_turtle_and_named_graphs():
    triples, _ = read("@prefix : <http://e/> .\n:a :p :b , :c ; a :T .\n", "f.ttl")
    assert triples == [
        ["http://e/a", "http://e/p", "http://e/b"],
        ["http://e/a", "http://e/p", "http://e/c"],
        ["http://e/a", "rdf:type", "http://e/T"],
    ]
    assert read("<http://a> <http://b> <http://c> <http://g> .\n", "f.nq")[0] == [
        ["http://a", "http://b", "http://c"]
    ]
    assert read("@prefix : <http://e/> .\n:g { :a :p :b }\n", "f.trig")[0] == triples[:1]
    quoted, said = read("@prefix : <http://e/> .\n:a :p :b .\n:a :p <<( :a :p :b )>> .\n", "f.ttl")
    assert quoted == triples[:1]
    assert "triples about triples (1)" in said


def test_an_ontology():
    text = HEAD + (
        '<owl:Ontology rdf:about="http://e/o"><owl:imports rdf:resource="http://127.0.0.1:9/x"/>'
        "</owl:Ontology>\n"
        '<owl:ObjectProperty rdf:about="http://e/part"/>\n'
        '<owl:Class rdf:about="http://e/A"><rdfs:subClassOf rdf:resource="http://e/B"/>\n'
        '<rdfs:subClassOf><owl:Restriction><owl:onProperty rdf:resource="http://e/part"/>\n'
        '<owl:someValuesFrom rdf:resource="http://e/C"/></owl:Restriction></rdfs:subClassOf>\n'
        '<rdfs:subClassOf><owl:Restriction><owl:onProperty rdf:resource="http://e/part"/>\n'
        '<owl:allValuesFrom rdf:resource="http://e/D"/></owl:Restriction></rdfs:subClassOf>\n'
        '<e:see rdf:resource="http://e/S"/><rdfs:label xml:lang="en">a</rdfs:label></owl:Class>\n'
        '<owl:Class rdf:about="http://e/Old"><owl:deprecated rdf:datatype='
        '"http://www.w3.org/2001/XMLSchema#boolean">true</owl:deprecated>\n'
        '<e:see rdf:resource="http://e/A"/></owl:Class>\n'
        '<e:K rdf:about="http://e/i"><e:part rdf:resource="http://e/j"/></e:K>\n</rdf:RDF>\n'
    )
    triples, said = read(text, "f.owl")
    assert triples == [
        ["http://e/A", "is_a", "http://e/B"],
        ["http://e/A", "http://e/see", "http://e/S"],
        ["http://e/i", "rdf:type", "http://e/K"],
        ["http://e/i", "http://e/part", "http://e/j"],
        ["http://e/A", "http://e/part", "http://e/C"],
    ]
    assert "class restrictions read as facts (1)" in said
    assert "facts of obsolete terms (1)" in said


@pytest.mark.parametrize(
    "document",
    [
        '<!DOCTYPE rdf:RDF [<!ENTITY a "http://e/">]>\n',
        '<!DOCTYPE rdf:RDF [\n<!ENTITY a "aaaaaaaaaa">\n<!ENTITY b "&a;&a;&a;&a;">\n]>\n',
        '<!DOCTYPE rdf:RDF [<!ENTITY x SYSTEM "file:///etc/passwd">]>\n',
        '<!DOCTYPE rdf:RDF [<!ENTITY % x SYSTEM "http://127.0.0.1:9/x"> %x;]>\n',
    ],
)
def test_entities_of_xml_are_refused(document):
    text = HEAD.replace("?>\n", "?>\n" + document, 1) + "<rdf:Description/></rdf:RDF>\n"
    with pytest.raises(DataError, match=r"f\.rdf, line [23]: XML entities are not expanded"):
        read(text, "f.rdf")


def test_a_document_type_is_not_fetched():
    document = '<!DOCTYPE rdf:RDF SYSTEM "http://127.0.0.1:9/x.dtd">\n'
    body = '<rdf:Description rdf:about="http://e/a"><e:p rdf:resource="http://e/b"/>'
    text = HEAD.replace("?>\n", "?>\n" + document, 1) + body + "</rdf:Description></rdf:RDF>"
    assert read(text, "f.rdf")[0] == [["http://e/a", "http://e/p", "http://e/b"]]


@pytest.mark.parametrize(
    ("body", "line", "shown"),
    [
        ('<rdf:Description rdf:about="http://e/a">\n<e:p rdf:resource="rel"/>', 6, "rel"),
        ('<rdf:Description rdf:about="http://e/a">\n<e:p rdf:resource="http://b"/>', 8, ""),
        ('<rdf:Description rdf:about="http://e/a">\n<e:p>&nbsp;</e:p>', 6, "&nbsp;"),
        ("<e:a>\n</e:b>", 6, "</e:b>"),
        ("<rdf:Description rdf:about='http://a'>\n<e:b rdf:ID='1'/>", 6, "rdf:ID"),
    ],
)
def test_faults_of_xml_come_with_their_line(body, line, shown):
    # The second is cut off: its elements are never closed.
    text = HEAD + body + ("\n\n" if line == 8 else "\n</rdf:Description></rdf:RDF>")
    with pytest.raises(DataError, match=rf"f\.rdf, line {line}: not valid RDF/XML: .*{shown}"):
        read(text, "f.rdf")


@pytest.mark.parametrize("format", ["turtle", "ntriples"])
@pytest.mark.parametrize(
    "content", [b"<http://e/a> <http://e/p> <http://e/\xff> .\n", b"\xff\xfea"]
)
def test_text_that_is_not_utf_8(format, content):
    with pytest.raises(DataError, match=r"f\.txt, line 1: not valid"):
        read(content, "f.txt", format=format)


def test_a_carriage_return_in_a_line_of_n_triples_is_refused():
    text = "<http://a> <http://b> <http://c> .\r\n<http://a> <http://b>\r <http://c> .\n"
    with pytest.raises(DataError, match=r"f\.txt, line 2: a carriage return inside the line"):
        read(text, "f.txt", format="ntriples")


def test_deep_nesting_is_no_recursion():
    text = "@prefix : <http://e/> .\n:a :p :b .\n:a :p " + "[ :p " * 20_000 + ":x" + "]" * 20_000
    assert read(text + " .", "f.ttl")[0] == [["http://e/a", "http://e/p", "http://e/b"]]


def test_without_pyoxigraph_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "pyoxigraph", raising=False)
    found = builtins.__import__

    def missing(name, *arguments):
        if name == "pyoxigraph":
            raise ImportError(name)
        return found(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        DataError, match=r"reading Turtle needs pyoxigraph: pip install 'sheafprop\[rdf\]'"
    ):
        read("@prefix : <http://e/> .\n:a :p :b .\n", "f.ttl")


def test_alternative_ids_of_an_ontology_mean_their_terms():
    # As OBO is converted: the alternative id is a deprecated class and a literal of its term.
    text = (
        "@prefix o: <http://purl.obolibrary.org/obo/> .\n"
        "@prefix owl: <http://www.w3.org/2002/07/owl#> .\n"
        "@prefix i: <http://www.geneontology.org/formats/oboInOwl#> .\n"
        'o:GO_1 a owl:Class ; i:hasAlternativeId "GO:9" .\n'
        'o:GO_9 a owl:Class ; owl:deprecated true ; o:IAO_0100001 o:GO_1 ; i:id "GO:9" .\n'
        'o:Q_1 a owl:Class ; i:hasAlternativeId "Q:9" .\n'
        "o:GO_2 o:RO_1 o:GO_9, o:Q_9, o:GO_8 . o:GO_9 o:RO_1 o:GO_2 .\n"
        "o:GO_8 owl:deprecated true .\n"
    )
    triples, said = read(text, "f.ttl")
    assert triples == [["GO:2", "RO:1", "GO:1"], ["GO:2", "RO:1", "obo:Q_1"]]
    assert "alternative ids replaced by their terms (2)" in said
    assert "facts of obsolete terms (2)" in said
    # The prefix that the table lacks is named, with what makes the labels those of OBO.
    (line,) = re.findall(r"--prefixes FILE with (\{.*?\}) makes", said)
    assert "labels differ from those of OBO files: Q ('obo:Q_1' is 'Q:1' there)" in said
    triples, said = read(text, "f.ttl", prefixes=json.loads(line))
    assert triples[1] == ["GO:2", "RO:1", "Q:1"]
    assert "lacks" not in said


def test_a_format_that_the_name_does_not_say_is_said():
    text = "<http://a> <http://b> <http://c> .\n"
    assert read(text, "f.nt")[1] == ""
    assert read(text, "f.txt")[1] == "f.txt: read as N-Triples"
    assert read(text, "f.txt", format="ntriples")[1] == ""
