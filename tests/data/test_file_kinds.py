"""Compressed files, and files of other formats."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import pytest

from sheafprop.data import file_kinds, parse_triples, read_triples
from sheafprop.errors import DataError

ROWS = [[f"n{i}", "knows", f"n{i % 7}"] for i in range(500)]
TEXT = "".join("\t".join(row) + "\n" for row in ROWS).encode()
PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("name", ["f.tsv.{}", "f.txt.{}", "f.{}", "misnamed.tsv"])
@pytest.mark.parametrize("kind", sorted(PACKERS))
def test_compressed_files_are_read(tmp_path, kind, name):
    path = tmp_path / name.format(kind)
    path.write_bytes(PACKERS[kind](TEXT[:777]) + PACKERS[kind](TEXT[777:]))  # of two members
    assert read_triples(path).tolist() == ROWS
    plain = tmp_path / "plain.tsv.gz"
    plain.write_bytes(TEXT)
    assert read_triples(plain).tolist() == ROWS


def test_the_name_before_the_compression_tells_the_format(tmp_path):
    path = tmp_path / "Edges.CSV.GZ"
    path.write_bytes(gzip.compress(TEXT.replace(b"\t", b",")))
    assert read_triples(path).tolist() == ROWS


@pytest.mark.parametrize("kind", sorted(PACKERS))
def test_truncated_and_damaged_files_are_named(kind):
    content = PACKERS[kind](TEXT)
    for size in (len(content) // 2, len(content) - 1):
        with pytest.raises(DataError, match=r"f\.tsv: the .* file is truncated.*Get it again"):
            parse_triples(content[:size], "f.tsv")
    middle = len(content) // 2
    broken = content[:middle] + bytes(b ^ 0xFF for b in content[middle : middle + 4])
    with pytest.raises(DataError, match=r"f\.tsv: the .* file is (damaged|truncated)"):
        parse_triples(broken + content[middle + 4 :], "f.tsv")


@pytest.mark.parametrize("kind", sorted(PACKERS))
def test_a_file_that_expands_without_end_is_refused(monkeypatch, kind):
    monkeypatch.setattr(file_kinds, "_MAX_BYTES", 1 << 16)
    monkeypatch.setattr(file_kinds, "_CHUNK", 1 << 12)
    with pytest.raises(DataError, match=r"bomb: .* expand to more than .*decompress the file"):
        parse_triples(PACKERS[kind](b"a\tr\tb\n" * 300_000), "bomb")


def test_zstandard_needs_a_newer_python(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(file_kinds.importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"Zstandard files need Python 3\.14.*zstd -d"):
        parse_triples(b"\x28\xb5\x2f\xfd\x00\x00", "f.zst")


def test_archives_of_files_are_refused():
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("train.txt", TEXT)
    with tarfile.open(fileobj=tarred, mode="w:gz") as tar:
        member = tarfile.TarInfo("train.txt")
        member.size = len(TEXT)
        tar.addfile(member, io.BytesIO(TEXT))
    for content, kind in ((zipped, "ZIP"), (tarred, "tar")):
        with pytest.raises(DataError, match=f"this is a {kind} archive of files. Unpack it"):
            parse_triples(content.getvalue(), "f")


def test_a_label_that_begins_like_a_mark_is_text():
    content = b"BZh9\tr\tb\nBZh9\tr\tPK\x03\x04\n"
    assert parse_triples(content, "f").tolist() == [["BZh9", "r", "b"], ["BZh9", "r", "PK\x03\x04"]]


FORMATS = {
    "N-Triples": [
        "<http://x/a> <http://x/p> <http://x/b> .\n",
        "<http://x/a>\t<http://x/p>\t<http://x/b> .\n",
        '# made by a tool\n\n_:b0 <p> "text with \\" and ."@en .\n',
        '<a>\t<p>\t"3"^^<http://www.w3.org/2001/XMLSchema#int>.\n',
        "<a> <p> <b> <graph> .\n",
    ],
    "Turtle": ["@prefix ex: <http://x/> .\nex:a ex:p ex:b .\n", "PREFIX ex: <http://x/>\n"],
    "RDF/XML": ["<?xml version='1.0'?>\n<rdf:RDF xmlns:rdf='http://r'>\n"],
    "an OWL ontology": [
        "<rdf:RDF xmlns:owl='http://o'>\n",
        "Prefix(owl:=<http://o#>)\nOntology(<http://x>\n",
    ],
    "an OBO ontology": ["format-version: 1.4\n\n[Term]\nid: X:1\n"],
    "JSON lines": [json.dumps({"subject": "a", "predicate": "p", "object": "b"}) + "\n"],
    "JSON": ['{\n "edges": []\n}\n', '[["a", "r", "b"]]\n'],
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in FORMATS.items() for text in texts]
)
def test_other_formats_are_refused_by_name(kind, text):
    # The name of the file says nothing, or something else.
    for name in ("facts.txt", "facts.csv"):
        with pytest.raises(DataError, match=rf"line \d+: this is {kind}, .*--input-format tsv"):
            parse_triples(text.encode(), name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.nt", "N-Triples"),
        ("x.ttl.gz", "Turtle"),
        ("x.OWL", "an OWL ontology"),
        ("x.obo", "an OBO ontology"),
        ("x.rdf.xz", "RDF/XML"),
        ("x.jsonl", "JSON lines"),
    ],
)
def test_names_of_other_formats_are_refused(name, kind):
    with pytest.raises(DataError, match=f"{name}: this is {kind}"):
        parse_triples(TEXT, name)
    assert parse_triples(TEXT, name, format="tsv").tolist() == ROWS


def test_labels_in_angle_brackets_are_labels():
    content = b"<a>\t<r>\t<b>\n<b>\t<r>\tv1.0 .\n"
    assert parse_triples(content, "yago.tsv")[1].tolist() == ["<b>", "<r>", "v1.0 ."]
    dotted = b"<a>\t<r>\t<b> .\n"
    assert parse_triples(dotted, "x", format="tsv").tolist() == [["<a>", "<r>", "<b> ."]]
