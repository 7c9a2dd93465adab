"""Every reader: real files with their counts, the options, and thousands of odd documents."""

import os
import random
import re
import warnings
from pathlib import Path

import pytest

from sheafprop.data import parse_triples, read_triples
from sheafprop.data.formats.reading import read_graph
from sheafprop.data.input_file import InputFile
from sheafprop.data.read_options import ReadOptions
from sheafprop.data.triple_files import read_files
from sheafprop.errors import DataError, NotTriplesError
from tests.data.formats.documents import WRITERS, draw_facts

FORMATS = Path(os.environ.get("SHEAFPROP_DATA", "")) / "formats"
EXAMPLES = 2000
# Characters that mean something to some reader.
ODD = ["<", ">", '"', "\\", "&", "{", "}", "[", "]", ":", ".", "\t", "\n", " ", "#", "@", "é", "x"]


def read(content, format="auto", name="f.txt", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parse_triples(content.encode(), name, format=format, **options).tolist()


@pytest.mark.skipif(not FORMATS.is_dir(), reason="SHEAFPROP_DATA names no folder with formats/")
@pytest.mark.parametrize(
    ("name", "count", "first", "words"),
    [
        ("oban-test.nt", 41, ("rdf:type", "http://purl.org/oban/association"), ""),
        (
            "biogrid_test.ttl",
            368,
            ("owl:equivalentClass", "http://identifiers.org/ensembl/ENSG00000248144"),
            r"read as Turtle; skipped: declarations \(2\), literals \(1\)",
        ),
        (
            "goslim_generic.owl.xz",
            1049,  # 993 of named terms, 56 of restrictions
            ("rdfs:subPropertyOf", "oboInOwl:SubsetProperty"),
            r"restrictions read as facts \(56\); skipped: .*literals \(1,410\)",
        ),
        ("taxrank.obo", 60, ("is_a", "TAXRANK:0000000"), r"literals \(61\)"),
        ("graph_edges.tsv", 539, ("biolink:interacts_with", "NCBIGene:6469"), ""),
        ("monarch-tiny_edges.tsv.xz", 500, ("biolink:has_phenotype", "FYPO:0002150"), ""),
    ],
)
def test_real_files_have_their_counts(name, count, first, words):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        triples = read_triples(FORMATS / name)
    assert len(triples) == count
    assert tuple(triples[0, 1:]) == first
    assert all(isinstance(label, str) and label for label in triples.ravel())
    assert re.search(words, "".join(str(w.message) for w in caught))


@pytest.mark.skipif(not FORMATS.is_dir(), reason="SHEAFPROP_DATA names no folder with formats/")
def test_nodes_of_kgx_are_features():
    path = FORMATS / "graph_nodes.tsv"
    with pytest.raises(NotTriplesError, match=r"nodes\.tsv, line 1: this file holds nodes"):
        read_triples(path)
    found = []
    with pytest.warns(UserWarning, match=r"nodes read \(534\); literals written \(1,\d+\)"):
        read_files([path], literals=lambda *row: found.append(row))
    assert found[:2] == [
        ("HGNC:10848", "name", "SHH (human)"),
        ("HGNC:10848", "category", "biolink:Gene"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edges = read_triples(FORMATS / "graph_edges.tsv")
    nodes = {entity for entity, _, _ in found}
    assert nodes >= set(edges[:, [0, 2]].ravel())


def test_a_file_of_nodes_is_named_as_one():
    with pytest.raises(NotTriplesError, match=r"f\.csv, line 1: this file holds nodes"):
        read("personId:ID(Person),name,:LABEL\n1,Ada,Person\n", name="f.csv")


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_thousands_of_documents_give_their_facts_or_an_error_with_the_line(format):
    """Whole documents give their facts; damaged ones some facts, or file, line and content."""
    write, labels_of = WRITERS[format]
    rng = random.Random(format)
    damaged = errors = 0
    for _ in range(EXAMPLES):
        facts = draw_facts(rng, rng.randrange(1, 5))
        text = write(facts, rng)
        if rng.random() < 0.5:
            text = rng.choice(["", "\ufeff"]) + rng.choice([text, text.replace("\n", "\r\n")])
            assert read(text, format) == labels_of(facts), text
            continue
        damaged += 1
        place = rng.randrange(len(text) + 1)
        end = min(len(text), place + rng.randrange(4))
        change = "".join(rng.choices(ODD, k=rng.randrange(3)))
        text = text[:place] + change + text[end:]
        try:
            got = read(text, format)
        except DataError as error:
            errors += 1
            message = str(error)
            assert re.match(r"f\.txt(, line (\d+): .|: )", message), (message, text)
            if found := re.search(r", line (\d+):", message):
                assert 1 <= int(found[1]) <= text.count("\n") + 1, (message, text)
            else:
                assert re.search("no triple|columns|column", message), (message, text)
        else:
            assert all(len(row) == 3 and all(row) for row in got), text
    assert damaged > EXAMPLES / 3
    assert errors > damaged / 20


def test_options_for_tables_are_refused():
    file = InputFile("f.nt", b"<http://a> <http://b> <http://c> .\n")
    for options in ({"columns": "0,1,2"}, {"header": "yes"}, {"delimiter": ";"}):
        with pytest.raises(
            DataError, match=r"f\.nt: '\w+' applies only to tables, and this is N-Triples"
        ):
            read_graph(file, "ntriples", ReadOptions.of(**options))


def test_literals_go_where_they_are_asked_for():
    text = '<http://a> <http://b> <http://c> .\n<http://a> <http://n> "x\\ty"@de .\n'
    found = []
    with pytest.warns(UserWarning, match=r"f\.nt: read as N-Triples; literals written \(1\)$"):
        read_graph(
            InputFile("f.nt", text.encode()),
            "ntriples",
            ReadOptions.of(),
            lambda *row: found.append(row),
        )
    assert found == [("http://a", "http://n@de", "x\ty")]
