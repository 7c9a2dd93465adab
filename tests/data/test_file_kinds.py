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
from sheafprop.data.file_kinds import recognize_format
from sheafprop.errors import DataError

ROWS = [[f"n{i}", "knows", f"n{i % 7}"] for i in range(500)]
TEXT = "".join("\t".join(row) + "\n" for row in ROWS).encode()
NAMES = ["f.tsv", "f.nt", "f.obo", "f.jsonl"]
PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": file_kinds._zstd().compress,
}


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
    for size, name in zip((len(content) // 2, len(content) - 1) * 2, NAMES, strict=True):
        with pytest.raises(DataError, match=rf"{name}: the .* file is truncated.*Download it"):
            parse_triples(content[:size], name)
    middle = len(content) // 2
    broken = content[:middle] + bytes(b ^ 0xFF for b in content[middle : middle + 4])
    with pytest.raises(DataError, match=r"f\.tsv: the .* file is (damaged|truncated)"):
        parse_triples(broken + content[middle + 4 :], "f.tsv")


@pytest.mark.parametrize("kind", sorted(PACKERS))
def test_a_file_that_expands_without_end_is_refused(monkeypatch, kind):
    monkeypatch.setattr(file_kinds, "_MAX_BYTES", 1 << 16)
    monkeypatch.setattr(file_kinds, "_CHUNK", 1 << 12)
    lines = {
        "f.nt": b"<a:a> <a:a> <a:a> .\n",
        "f.obo": b"[Term]\nid: X:1\nis_a: X:2\n",
        "f.jsonl": b'{"subject": "a", "predicate": "r", "object": "b"}\n',
    }
    for name in NAMES:
        packed = PACKERS[kind](lines.get(name, b"a\tr\tb\n") * 30_000)
        with pytest.raises(DataError, match=rf"{name}: .* expand to more than .*decompress the"):
            parse_triples(packed, name)


def test_zstandard_without_its_library_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(file_kinds.importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"Zstandard needs.*pip install 'sheafprop\[zstd\]'"):
        parse_triples(b"\x28\xb5\x2f\xfd\x00\x00", "f.zst")


def test_parquet_without_its_library_is_named(monkeypatch):
    def missing(*arguments):
        raise ImportError("pyarrow")

    monkeypatch.setattr("pandas.read_parquet", missing)
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'sheafprop\[parquet\]'"):
        parse_triples(b"PAR1", "f.parquet")


def test_archives_of_files_are_refused():
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("train.txt", TEXT)
    with tarfile.open(fileobj=tarred, mode="w:gz") as tar:
        member = tarfile.TarInfo("train.txt")
        member.size = len(TEXT)
        tar.addfile(member, io.BytesIO(TEXT))
    for content, kind in ((zipped, "ZIP"), (tarred, "tar")):
        with pytest.raises(DataError, match=f"this is a {kind} archive. Unpack it"):
            parse_triples(content.getvalue(), "f")


def test_a_label_that_begins_like_a_mark_is_text():
    content = b"BZh9\tr\tb\nBZh9\tr\tPK\x03\x04\n"
    assert parse_triples(content, "f").tolist() == [["BZh9", "r", "b"], ["BZh9", "r", "PK\x03\x04"]]


READ = {
    "ntriples": [
        "<http://x/a> <http://x/p> <http://x/b> .\n",
        "<http://x/a>\t<http://x/p>\t<http://x/b> .\n",
        '# made by a tool\n\n_:b0 <p> "text with \\" and ."@en .\n',
        '<a>\t<p>\t"3"^^<http://www.w3.org/2001/XMLSchema#int>.\n',
    ],
    "nquads": ["<a> <p> <b> <graph> .\n", "<a> <p> <b> .\n<a> <p> <b> <graph> .\n"],
    "turtle": [
        "@prefix ex: <http://x/> .\nex:a ex:p ex:b .\n",
        "PREFIX ex: <http://x/>\n",
        "<a> <p> <b> .\n@prefix ex: <http://x/> .\n",
    ],
    "rdfxml": [
        "<?xml version='1.0'?>\n<rdf:RDF xmlns:rdf='http://r'>\n",
        "<rdf:RDF xmlns:owl='http://o'>\n",
        "<!-- by a tool -->\n<rdf:RDF>\n",
    ],
    "obo": ["format-version: 1.4\n\n[Term]\nid: X:1\n", "[Term]\nid: X:1\n"],
    "jsonl": [json.dumps({"subject": "a", "predicate": "p", "object": "b"}) + "\n"],
}
REFUSED = {
    "OWL in functional": ["Prefix(owl:=<http://o#>)\nOntology(<http://x>\n", "Prefix: x <y>\n"],
    "OWL/XML": ["<?xml version='1.0'?>\n<Ontology xmlns='http://o'>\n"],
    "XML": ["<?xml version='1.0'?>\n<a/>\n", "<graphml>\n"],
    "JSON": ['{\n "edges": []\n}\n', '[["a", "r", "b"]]\n'],
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in READ.items() for text in texts]
)
def test_formats_are_told_by_their_lines(kind, text):
    # The name of the file says nothing, or something else.
    for name in ("facts.txt", "facts.csv", "facts.obo"):
        assert recognize_format(text, name) == kind


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in REFUSED.items() for text in texts]
)
def test_formats_without_a_reader_are_refused_by_name(kind, text):
    for name in ("facts.txt", "facts.csv"):
        with pytest.raises(DataError, match=rf"line \d+: this is {kind}.*--input-format tsv"):
            parse_triples(text.encode(), name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.nt", "ntriples"),
        ("x.ttl.gz", "turtle"),
        ("x.OWL", "rdfxml"),
        ("x.obo.zst", "obo"),
        ("x.rdf.xz", "rdfxml"),
        ("x.jsonl", "jsonl"),
        ("x.nq", "nquads"),
        ("x.trig", "trig"),
        ("x.tsv", None),
    ],
)
def test_formats_are_told_by_names(name, kind):
    assert recognize_format("a\tr\tb\n", name) == kind
    assert parse_triples(TEXT, name, format="tsv").tolist() == ROWS


def test_lines_of_n_triples_in_a_file_of_turtle_are_turtle():
    text = READ["ntriples"][0]
    assert recognize_format(text, "x.ttl") == "turtle"
    assert recognize_format(text, "x.trig.gz") == "trig"
    assert recognize_format("@prefix : <http://x/> .\n", "x.nt") == "turtle"


@pytest.mark.parametrize("name", ["x.graphml", "x.n3", "x.jsonld", "x.json", "x.omn"])
def test_names_of_formats_without_a_reader_are_refused(name):
    with pytest.raises(DataError, match=f"{name}: this is"):
        parse_triples(TEXT, name)


def test_labels_in_angle_brackets_are_labels():
    content = b"<a>\t<r>\t<b>\n<b>\t<r>\tv1.0 .\n"
    assert parse_triples(content, "yago.tsv")[1].tolist() == ["<b>", "<r>", "v1.0 ."]
    dotted = b"<a>\t<r>\t<b> .\n"
    assert parse_triples(dotted, "x", format="tsv").tolist() == [["<a>", "<r>", "<b> ."]]
