import csv
import gzip
import itertools

import pytest

from sheafprop.cli.main import main
from sheafprop.data import read_features, read_triples
from tests.cli.commands import failing, output
from tests.data.formats.test_obo import TEXT
from tests.data.formats.test_rdf import HEAD

NT = (
    "<http://www.wikidata.org/entity/Q1> <http://e/p> <http://e/caf\u00e9> .\n"
    '<http://e/a> <http://e/n> "1,5 \\"q\\"\\n"@en .\n<http://e/a> <http://e/p> <http://e/b> .\n'
)


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_an_ontology_becomes_triples_and_features(tmp_path, capsys):
    (tmp_path / "x.obo").write_text(TEXT)
    out, literals = tmp_path / "x.tsv", tmp_path / "features.csv"
    printed = output(capsys, "convert", tmp_path / "x.obo", "--out", out, "--literals", literals)
    assert printed.out.split() == [str(out), str(literals)]
    assert "read as OBO" in printed.err
    assert "literals written (2)" in printed.err
    assert ["X:1", "part_of", "X:3"] in read_triples(out, header=False).tolist()
    assert rows(literals) == [
        ["entity", "property", "value"],
        ["X:1", "name", "one"],
        ["X:1", "size", "3"],
    ]


@pytest.mark.parametrize("prefixes", ["common", "none", "FILE"])
def test_labels_survive_every_way_round(tmp_path, capsys, prefixes):
    (tmp_path / "prefixes.json").write_text('{"e": "http://e/"}')
    given = ["--prefixes", tmp_path / "prefixes.json" if prefixes == "FILE" else prefixes]
    (tmp_path / "a.nt.gz").write_bytes(gzip.compress(NT.encode()))
    steps = ["a.nt.gz", "b.tsv", "c.csv", "d.nt", "e.tsv"]
    for one, other in itertools.pairwise(steps):
        words = ["--columns", "0,1,2"] if one == "b.tsv" else []
        output(capsys, "convert", tmp_path / one, "--out", tmp_path / other, *given, *words)
    assert (tmp_path / "b.tsv").read_text() == (tmp_path / "e.tsv").read_text()
    first = {
        "common": ["wd:Q1", "http://e/p", "http://e/café"],
        "none": ["http://www.wikidata.org/entity/Q1", "http://e/p", "http://e/café"],
        "FILE": ["wd:Q1", "e:p", "e:café"],
    }
    assert (tmp_path / "b.tsv").read_text().split("\n")[0].split("\t") == first[prefixes]
    facts = [line for line in NT.split("\n") if '"' not in line]
    assert (tmp_path / "d.nt").read_text() == "\n".join(facts)


def test_several_files_and_standard_output(tmp_path, capsys):
    (tmp_path / "a.nt").write_text(NT)
    (tmp_path / "b.rdf").write_text(
        HEAD + '<e:T rdf:about="http://e/a"><e:p rdf:resource="http://e/z"/></e:T></rdf:RDF>'
    )
    printed = output(capsys, "convert", tmp_path / "a.nt", tmp_path / "b.rdf", "--out", "-")
    assert printed.out.count("\n") == 4
    assert printed.out.endswith("http://e/a\thttp://e/p\thttp://e/z\n")
    assert "4 triples" in printed.err


def test_a_refused_file_leaves_nothing(tmp_path, capsys):
    (tmp_path / "a.nt").write_text(NT + "<http://e/a> <http://e/p> <bad .\n")
    words = ["convert", tmp_path / "a.nt", "--out", tmp_path / "out.tsv"]
    words += ["--literals", tmp_path / "features.csv"]
    assert "a.nt, line 4: not valid N-Triples" in failing(capsys, *words)
    (tmp_path / "a.nt").write_text(NT.replace("/b>", "/\\u0009>"))
    assert "a.nt, line 3" in failing(capsys, *words)
    (tmp_path / "tab.jsonl").write_text('{"subject": "a\\tb", "predicate": "p", "object": "c"}\n')
    words[1] = tmp_path / "tab.jsonl"
    assert "cannot be written" in failing(capsys, *words)
    assert "give --format" in failing(capsys, "convert", tmp_path / "a.nt", "--out", "x.bin")
    for literals in ("-", tmp_path / "out.tsv"):
        words = ["convert", tmp_path / "a.nt", "--out", tmp_path / "out.tsv"]
        assert "must be a file other than --out" in failing(capsys, *words, "--literals", literals)
    assert not (tmp_path / "out.tsv").exists()
    assert not (tmp_path / "features.csv").exists()


def test_nodes_of_neo4j_become_features_alone_or_beside_their_facts(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.csv").write_text("id:ID(P),age:int,:LABEL\n1,36,A;B\n2,,A\n")
    (tmp_path / "edges_header.csv").write_text(":START_ID(P),:TYPE,:END_ID(P)\n")
    (tmp_path / "edges.csv").write_text("1,KNOWS,2\n")
    want = [
        ["P:1", "age", "36"],
        ["P:1", "label", "A"],
        ["P:1", "label", "B"],
        ["P:2", "label", "A"],
    ]
    printed = output(capsys, "convert", "nodes.csv", "--literals", "f.csv")
    assert printed.out == "f.csv\n"
    assert "nodes read (2); literals written (4)" in printed.err
    assert rows("f.csv")[1:] == want
    names = ["nodes.csv", "edges_header.csv,edges.csv"]
    output(capsys, "convert", *names, "--out", "e.tsv", "--literals", "g.csv")
    assert (tmp_path / "e.tsv").read_text() == "P:1\tKNOWS\tP:2\n"
    assert rows("g.csv")[1:] == want
    table = read_features("g.csv")
    assert {column.name: column.kind for column in table.columns} == {
        "age": "number",
        "label": "types",
    }
    # What is there to read is said, and nothing is written.
    words = ["convert", "nodes.csv", "--out", "other.tsv"]
    assert "this file holds nodes" in failing(capsys, *words)
    assert "the files hold no triples" in failing(capsys, *words, "--literals", "other.csv")
    with pytest.raises(SystemExit):
        main(["convert", "edges.csv"])
    assert "give --out FILE, --literals FILE or both" in capsys.readouterr().err
    assert not list(tmp_path.glob("other*"))
