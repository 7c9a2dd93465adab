"""N-Triples that are read back as they were."""

import warnings

import numpy as np
import pyoxigraph
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafprop.data import parse_triples
from sheafprop.data.formats.prefixes import Prefixes
from sheafprop.data.formats.writing import format_ntriples

LABEL = st.one_of(
    st.text(min_size=1, max_size=6),
    st.sampled_from(
        ["GO:1", "<GO:1>", "_:b0", "http://purl.obolibrary.org/obo/GO_1", "a b", "x.", "?"]
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(LABEL, LABEL, LABEL), min_size=1, max_size=4),
    st.sampled_from([None, "none"]),
)
def test_labels_come_back_exactly(triples, given_prefixes):
    prefixes = Prefixes.of(given_prefixes)
    numbers = {"score": np.linspace(-1, 1, len(triples))}
    for columns in (None, numbers):
        content = b"".join(format_ntriples(triples, prefixes, columns))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = parse_triples(content, "f.nt", prefixes=prefixes, format="ntriples")
        assert got.tolist() == [list(triple) for triple in triples]


def test_numbers_belong_to_their_statement():
    rows = [("a", "wdt:P1", "wd:Q1"), ("b", "r", "c")]
    numbers = {"probability": [0.25, float("nan")], "score": [-float("inf"), 1e-30]}
    content = b"".join(format_ntriples(rows, Prefixes.of(), numbers))
    found = {}
    for quad in pyoxigraph.parse(content, format=pyoxigraph.RdfFormat.N_TRIPLES):
        found.setdefault(str(quad.subject), {})[quad.predicate.value] = quad.object.value
    rdf = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
    assert found["_:s0"] == {
        f"{rdf}type": f"{rdf}Statement",
        f"{rdf}subject": "urn:sheafprop:label:a",
        f"{rdf}predicate": "http://www.wikidata.org/prop/direct/P1",
        f"{rdf}object": "http://www.wikidata.org/entity/Q1",
        "urn:sheafprop:probability": "0.25",
        "urn:sheafprop:score": "-INF",
    }
    assert found["_:s1"]["urn:sheafprop:probability"] == "NaN"
    assert float(found["_:s1"]["urn:sheafprop:score"]) == pytest.approx(1e-30)
