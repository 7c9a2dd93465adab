"""Labels of IRIs, and IRIs of labels."""

import json

import pyoxigraph
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.data.formats.prefixes import COMMON, Prefixes
from sheafprop.errors import DataError

MORE = {"ex": "http://example.org/", "exdeep": "http://example.org/deep#", "http": "urn:odd:"}
IRIS = st.tuples(
    st.sampled_from(
        [*COMMON.values(), *MORE.values(), "urn:sheafprop:label:", "ex:", "http:", "x:"]
    ),
    st.text("aG/#:_%20Oé-~(", max_size=8),
).map("".join)
LABELS = st.one_of(
    IRIS,
    st.text(max_size=8),
    st.sampled_from(["is_a", "rdfs:subClassOf", COMMON["rdfs"] + "subClassOf"]),
    st.tuples(st.sampled_from([*COMMON, *MORE]), st.text("aG:_0<> \té%", max_size=6)).map(":".join),
    IRIS.map(lambda iri: f"<{iri}>"),
)


def is_iri(text):
    try:
        pyoxigraph.NamedNode(text)
    except ValueError:
        return False
    return True


@settings(max_examples=400, deadline=None)
@given(IRIS, st.sampled_from([None, "none", MORE]))
def test_every_iri_comes_back(iri, given_prefixes):
    prefixes = Prefixes.of(given_prefixes)
    if is_iri(iri):
        label = prefixes.shorten(iri)
        back = prefixes.expand(label)
        # What this library does not write itself, such as brackets, comes back as the same label.
        assert back == iri or prefixes.shorten(back) == label


@settings(max_examples=400, deadline=None)
@given(LABELS, st.sampled_from([None, "none", MORE]))
def test_every_label_comes_back_from_an_iri(label, given_prefixes):
    prefixes = Prefixes.of(given_prefixes)
    iri = prefixes.expand(label)
    assert is_iri(iri), iri
    assert prefixes.shorten(iri) == label


@settings(max_examples=200, deadline=None)
@given(IRIS, IRIS)
def test_two_iris_never_share_a_label(one, other):
    prefixes = Prefixes.of(MORE)
    if is_iri(one) and is_iri(other) and one != other:
        assert prefixes.shorten(one) != prefixes.shorten(other)


def test_known_iris():
    prefixes = Prefixes.of()
    iri = "http://purl.obolibrary.org/obo/GO_0008150"
    assert prefixes.shorten(iri) == "GO:0008150"
    assert prefixes.expand("GO:0008150") == iri
    assert prefixes.shorten("http://www.wikidata.org/entity/Q42") == "wd:Q42"
    assert prefixes.shorten("http://nowhere.example/x") == "http://nowhere.example/x"
    assert Prefixes.of("none").shorten(iri) == iri
    # A relation that OBO and OWL call differently is one, both ways.
    assert prefixes.shorten(COMMON["rdfs"] + "subClassOf") == "is_a"
    assert prefixes.expand("is_a") == COMMON["rdfs"] + "subClassOf"
    assert prefixes.expand("rdfs:subClassOf").startswith("urn:sheafprop:label:")
    assert Prefixes.of("none").expand("is_a") == "urn:sheafprop:label:is_a"
    assert prefixes.shorten("wd:Q42") == "<wd:Q42>"
    assert prefixes.expand("<wd:Q42>") == "wd:Q42"
    # Percent-encoded otherwise than here, so another IRI.
    for iri in ("urn:sheafprop:label:%61", "urn:sheafprop:label:%ff"):
        assert prefixes.shorten(iri) == prefixes.expand(iri) == iri
    assert prefixes.shorten("urn:sheafprop:label:a") == "a"
    assert prefixes.expand("ada lovelace") == "urn:sheafprop:label:ada%20lovelace"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"ex": "http://example.org/"}),
        json.dumps({"@context": {"ex": "http://example.org/"}}),
        "\ufeff@prefix ex: <http://example.org/> .\n",
        "PREFIX ex: <http://example.org/>\r\n",
    ],
)
def test_files_of_prefixes(tmp_path, text):
    path = tmp_path / "prefixes"
    path.write_bytes(text.encode())
    prefixes = Prefixes.of(path)
    assert prefixes.shorten("http://example.org/a") == "ex:a"
    assert prefixes.shorten(COMMON["rdf"] + "type") == "rdf:type"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "expected a JSON object"),
        ("{", "expected a JSON object"),
        ('{"a b": "http://x/"}', "prefixes must be words.*'a b'"),
        ('{"a": "relative/"}', "prefixes must be words.*'relative/'"),
        ('{"a": {"@id": "http://x/"}}', "prefixes must be words"),
    ],
)
def test_other_files_are_refused(tmp_path, text, words):
    path = tmp_path / "prefixes.json"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"prefixes\.json: {words}"):
        Prefixes.of(path)
    with pytest.raises(DataError, match="missing: cannot be read"):
        Prefixes.of(tmp_path / "missing")


@pytest.mark.parametrize(
    ("label", "short"),
    [
        (COMMON["wd"] + "Q42", "wd:Q42"),
        (f"<{COMMON['rdfs']}subClassOf>", "is_a"),
        ("<http://nowhere.example/x>", "http://nowhere.example/x"),
        ("urn:sheafprop:label:a%20b", "a b"),
        *((same, same) for same in ("wd:Q42", "<wd:Q42>", "a b", "<a b>", "is_a", "", "<>")),
    ],
)
def test_labels_of_tables_are_shortened_where_they_are_iris(label, short):
    assert Prefixes.of().shorten_label(label) == short
    assert Prefixes.of().shorten_label(short) == short
