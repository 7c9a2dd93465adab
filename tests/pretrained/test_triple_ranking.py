import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop.errors import DataError
from tests.pretrained.models import sheaf_model

NEW = [("n", "next", "a3"), ("a9", "skip", "n"), ("n", "far", "m")]
TEST = [("a0", "next", "a1"), ("n", "skip", "a4"), ("a2", "far", "n"), ("u", "next", "a1")]


def ranks(result):
    return torch.stack([result.ranks(side) for side in ("head", "tail")])


def test_unknown_entities_are_refused_with_the_way_out():
    with pytest.raises(DataError, match=r"'n'.*3 of 4 triples affected.*--on-unknown-entity drop"):
        sheaf_model("rotate").rank(TEST)


def test_unknown_entities_are_dropped_and_counted():
    model = sheaf_model("rotate")
    result = model.rank(TEST, on_unknown_entity="drop")
    assert torch.equal(ranks(result), ranks(model.rank(TEST[:1])))
    assert result.num_dropped == result.metrics()["dropped"] == 3
    assert (
        "3 triples dropped, as 2 entities have no vector (first: 'n'; row 1; row 2; row 3)"
        in result.describe()
    )
    with pytest.raises(DataError, match="no triple is left to rank: 1 triple dropped"):
        model.rank(TEST[1:2], on_unknown_entity="drop")
    assert model.rank(TEST[:1], on_unknown_entity="drop").notes == ()


def test_unknown_entities_with_facts_are_extended_to_and_test_triples_are_no_facts():
    model = sheaf_model("rotate")
    result = model.rank(TEST, on_unknown_entity="extend", facts=[*NEW, TEST[1], TEST[3]])
    larger = model.extend(NEW)
    assert torch.equal(ranks(result), ranks(larger.rank(TEST[:3])))
    assert result.num_candidates == larger.num_entities
    assert result.num_dropped == 1
    box = result.describe()
    assert (
        "2 facts left out of the extension, as a triple to rank is not a fact (row 3; row 4)" in box
    )
    assert "2 entities added from 3 facts before ranking" in box
    assert "1 triple dropped, as 1 entity has no fact (first: 'u'; row 3)" in box
    assert "n" not in model.labels()
    with pytest.raises(DataError, match="no fact is left to extend by"):
        model.rank(TEST, on_unknown_entity="extend", facts=TEST[1:])


def test_unknown_entities_with_features_are_extended_to_without_more_candidates():
    size = {f"a{i}": float(i % 5) for i in range(12)} | {"n": 1.0, "u": 3.5, "elsewhere": 2.0}
    features = pd.DataFrame({"size": size})
    model = sheaf_model("rotate")
    extended = {"on_unknown_entity": "extend", "features": features}
    result = model.rank([*TEST, ("v", "next", "a1")], facts=NEW, **extended)
    larger = model.extend(NEW, features=features.drop("elsewhere"))
    assert torch.equal(ranks(result), ranks(larger.rank(TEST)))
    assert result.num_candidates == larger.num_entities == 15
    assert "3 entities added from 3 facts and features of 2 before ranking" in result.describe()
    assert "1 triple dropped, as 1 entity has no fact or feature" in result.describe()
    # By features alone; and a model that has a map says that it was not used.
    assert model.rank(TEST[3:], **extended).num_candidates == 13
    result = larger.rank([("v", "next", "a1")], on_unknown_entity="extend",
                         facts=[("v", "far", "a2")])  # fmt: skip
    assert "added entities have their vectors from facts alone" in result.describe()


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_unknown_entity": "extend"},
        {"facts": NEW},
        {"features": pd.DataFrame({"size": {"a0": 1.0}})},
        {"on_unknown_entity": "keep"},
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments):
    with pytest.raises(ValueError, match=r"extend"):
        sheaf_model("transe").rank(TEST[:1], **arguments)


def test_a_triple_that_is_given_again_is_ranked_once():
    model = sheaf_model("se")
    pair = [("a0", "next", "a1"), ("a4", "far", "a2")]
    often = model.rank([*pair, pair[0], pair[0]])
    assert often.metrics() == model.rank(pair).metrics()
    assert "2 triples given again: each is ranked once (row 2; row 3)" in often.describe(
        "sampled50"
    )


def test_ratios_are_those_of_explain():
    model = sheaf_model("transe")
    asked = [("a0", "next", "a1"), ("a4", "far", "a2")]
    scored = model.score(asked)
    assert list(scored.columns) == ["head", "relation", "tail", "score", "ratio", "known"]
    expected = [model.explain(triple)["ratio"][0] for triple in asked]
    np.testing.assert_allclose(scored["ratio"], expected, rtol=1e-12)
