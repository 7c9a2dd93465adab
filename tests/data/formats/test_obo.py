"""OBO ontologies."""

import builtins
import warnings

import pytest

from sheafprop.data import parse_triples
from sheafprop.data.input_file import InputFile
from sheafprop.data.triples import read_located
from sheafprop.errors import DataError

TEXT = """\
format-version: 1.4
import: http://127.0.0.1:9/other.obo

[Term]
id: X:1
name: one ! a name
def: "broken
synonym: broken
unknown_tag: [
is_a: X:2 {source="a"} ! two
relationship: part_of X:3 {cardinality="1"} ! three

! a comment
[Term]
id: X:2
is_obsolete: false
is_a: X:1 ! a cycle
is_a: Y:odd\\ id\\:2
is_a: X\\:odd\\ id
relationship: RO:0001 http://purl.obolibrary.org/obo/GO_1

[Term]
id: X:9
is_obsolete: true
is_a: X:1

[Typedef]
id: part_of
is_a: RO:2

[Term]
id: X:1
is_a: X:9
is_a: X:4
property_value: seen_in X:5
property_value: size "3" xsd:integer

[Instance]
id: I:1
instance_of: X:1
"""


def read(text, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        triples = parse_triples(text.encode(), "f.obo", **options).tolist()
    return triples, "".join(str(warning.message) for warning in caught)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_terms(mark, end):
    triples, said = read(mark + TEXT.replace("\n", end))
    assert triples == [
        ["X:1", "is_a", "X:2"],
        ["X:1", "part_of", "X:3"],
        ["X:2", "is_a", "X:1"],
        ["X:2", "is_a", "Y:odd id:2"],
        ["X:2", "is_a", "X:odd id"],
        ["X:2", "RO:0001", "GO:1"],
        ["X:1", "is_a", "X:4"],
        ["X:1", "seen_in", "X:5"],
    ]
    assert said == (
        "f.obo: read as OBO; frames joined with an earlier one of the same id (1); skipped: "
        "clauses 'unknown_tag' (1), literals (2), frames that are not terms (2), facts of obsolete "
        "terms (2)"
    )


def test_lines_of_facts_are_those_of_the_file(tmp_path):
    path = tmp_path / "f.obo"
    path.write_text(TEXT)
    with pytest.warns(UserWarning, match="read as OBO"):
        rows = read_located(path)
    lines = TEXT.split("\n")
    for row, (_, relation, _) in enumerate(rows.rows.tolist()):
        number = int(rows.place(row).rpartition(" ")[2])
        assert relation in lines[number - 1]


@pytest.mark.parametrize(
    ("lines", "number", "words"),
    [
        (["[Term]", "id: X:1", "is_a: a b"], 3, "is_a: a b"),
        (["[Term]", "id: X:1", "", "is_a: "], 4, "is_a:"),
        (["[Term]", "name: one", "id: X:1"], 2, "name: one"),
        (["[Term]", "id: X:1", "relationship: part_of"], 3, "part_of"),
        (["[Term]", "id: X:1", "no tag"], 3, "expected 'tag: value' .got 'no tag'"),
    ],
)
def test_malformed_lines_are_named(lines, number, words):
    with pytest.raises(DataError, match=rf"f\.obo, line {number}: not valid OBO: .*{words}"):
        read("\n".join(lines))


def test_without_fastobo_the_extra_is_named(monkeypatch):
    found = builtins.__import__

    def missing(name, *arguments):
        if name == "fastobo":
            raise ImportError(name)
        return found(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        DataError, match=r"reading OBO needs fastobo: pip install 'sheafprop\[obo\]'"
    ):
        read(TEXT)


def test_clauses_that_are_not_read_are_counted_by_name():
    triples, said = read(
        "[Term]\nid: X:1\nname: a\nalt_id: X:9\nxref: Z:1\n\n[Term]\nid: X:2\nisa: X:1\n"
        "part_of: X:1\nrelationship: part_of X:1\nintersection_of: X:1\n"
        "intersection_of: part_of X:2\ndisjoint_from: X:1\n"
    )
    assert triples == [["X:2", "part_of", "X:1"]]
    for lost in ("'isa' (1)", "'part_of' (1)", "'intersection_of' (2)", "'disjoint_from' (1)"):
        assert f"clauses {lost}" in said
    assert "alt_id" not in said
    assert "xref" not in said


def test_a_clause_without_its_colon_is_named_with_its_line():
    with pytest.raises(DataError, match="line 3: not valid OBO: expected 'tag: value'"):
        parse_triples(b"[Term]\nid: X:2\nis_a X:1 ! a\n", "f.obo")


ALTERNATIVES = """\
[Term]
id: X:1
name: one
alt_id: X:9
alt_id: X:8
alt_id: http://purl.obolibrary.org/obo/GO_7
is_a: X:8 ! itself

[Term]
id: X:2
alt_id: X:8
alt_id: X:3
is_a: X:9
relationship: part_of X:5
relationship: BFO:0000050 GO:7
is_a: X:10
is_a: X:6
is_a: X:7
is_a: X:11

[Term]
id: X:3
name: a term of its own

[Term]
id: X:5
name: old
is_obsolete: true
replaced_by: X:10
is_a: X:2

[Term]
id: X:6
name: older
is_obsolete: true
consider: X:1

[Term]
id: X:7
is_obsolete: true
replaced_by: X:6

[Term]
id: X:10
is_obsolete: true
replaced_by: X:1

[Term]
id: X:11
is_obsolete: true
replaced_by: X:12

[Term]
id: X:12
is_obsolete: true
replaced_by: X:11

[Typedef]
id: part_of
xref: BFO:0000050 {source="x"} ! part of
"""


def test_alternative_ids_mean_their_terms():
    triples, said = read(ALTERNATIVES)
    assert triples == [
        ["X:1", "is_a", "X:8"],  # of two terms
        ["X:2", "is_a", "X:1"],
        ["X:2", "part_of", "X:1"],  # replaced twice
        ["X:2", "part_of", "X:1"],
        ["X:2", "is_a", "X:1"],
    ]
    assert "alternative ids replaced by their terms (5)" in said
    assert "or that are terms themselves, not replaced (2)" in said
    # X:5 itself, and tails that nothing, an obsolete term or one another replaces.
    assert "facts of obsolete terms (4)" in said
    assert "clauses" not in said


def test_literals_of_obsolete_terms_are_left_out():
    found = []
    file = InputFile("f.obo", ALTERNATIVES.encode())
    with pytest.warns(UserWarning, match=r"literals written \(2\); .*of obsolete terms \(2\)"):
        read_located(file, literals=lambda *row: found.append(row))
    assert found == [("X:1", "name", "one"), ("X:3", "name", "a term of its own")]
