import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop.errors import DataError
from sheafprop.kge import KGE_REGISTRY
from sheafprop.query import InteriorPrior, Query
from tests.pretrained.models import ADRIFT, FACTS, sheaf_model
from tests.query.brute_force import best_scores

MODELS = sorted(KGE_REGISTRY)
QUERIES = {
    "via(next, n1)": ("n1", ["next"]),
    "via(inverse(far), a3)": ("a3", ["inverse far"]),
    "via(skip, via(next, n0))": ("n0", ["next", "skip"]),
}


def tree(model, start, path):
    """The tuples of brute_force for a path of relations."""
    relations, node = model.relations.index, ("anchor", model.labels().index(start))
    for step in path:
        *inverse, name = step.split()
        node = ("via", node, relations[name], bool(inverse), 1.0)
    return node


def expected_scores(model, node):
    weights = model.scorer()._groups
    weights = [value for value, x in weights for _ in range(x.shape[1])]
    return best_scores(node, model.kge.sheaf(), model.vectors().numpy(), weights)


@pytest.mark.parametrize("propagation", ["exact", "selected"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_minimise_the_energy_of_the_query_graph(name, propagation):
    model = sheaf_model(name).extend(FACTS, propagation=propagation)
    for text, (start, path) in QUERIES.items():
        frame = model.answer(text, k=model.num_entities)
        assert set(frame["query"]) == {text}
        want = expected_scores(model, tree(model, start, path))
        got = frame.set_index("answer")["score"].loc[list(model.labels())]
        np.testing.assert_allclose(got, want, atol=1e-6)
        assert list(frame["score"]) == sorted(frame["score"], reverse=True)
    both = ("and", tuple(tree(model, *QUERIES[text]) for text in list(QUERIES)[:2]))
    frame = model.answer("and(via(next, n1), via(inverse(far), a3))", 4)
    want = np.sort(expected_scores(model, both))[::-1][:4]
    np.testing.assert_allclose(frame["score"], want, atol=1e-6)
    either = ("or", both[1])
    frame = model.answer("or(via(next, n1), via(inverse(far), a3))", 4)
    want = np.sort(expected_scores(model, either))[::-1][:4]
    np.testing.assert_allclose(frame["score"], want, atol=1e-6)


@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_one_step_is_a_prediction_with_its_energy(name):
    model = sheaf_model(name).extend(FACTS)
    answers = model.answer("via(next, n1)", 5)
    predicted = model.predict_tails("n1", "next", 5, include_known=True)
    assert list(answers["answer"]) == list(predicted["tail"])
    assert list(answers["origin"]) == list(predicted["origin"])
    assert list(answers["known"]) == list(predicted["known"])
    np.testing.assert_allclose(answers["score"], predicted["score"], atol=1e-9)
    energy = model.explain(("n1", "next", answers["answer"][0]))["energy"][0]
    assert answers["energy"][0] == pytest.approx(energy, abs=1e-9)


@pytest.mark.parametrize("propagation", ["exact", "selected"])
@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_an_explained_energy_is_split_by_edge(name, propagation):
    model = sheaf_model(name).extend(FACTS, propagation=propagation)
    text = "and(via(far, via(next, n0)), via(inverse(skip), a2))"
    plain, split = model.answer(text, 3), model.answer(text, 3, explain=True)
    assert list(split.columns) == [*plain.columns, "edge", "edge_energy"]
    assert list(split["edge"]) == ["next", "far", "inverse(skip)"] * 3
    first = split.drop(columns=["edge", "edge_energy"]).iloc[::3].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, plain)
    sums = split["edge_energy"].to_numpy().reshape(3, 3).sum(1)
    np.testing.assert_allclose(sums, plain["energy"], rtol=1e-6)
    assert (split["edge_energy"] >= 0).all()


@pytest.mark.parametrize("propagation", ["exact", "selected"])
@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_a_prior_expects_the_vertices_between_where_facts_have_entities(name, propagation):
    model = sheaf_model(name).extend(FACTS, propagation=propagation)
    entity = {label: i for i, label in enumerate(model.labels())}
    index = (entity, model.relations.index, entity)
    facts = torch.tensor(
        [
            [ids[label] for ids, label in zip(index, triple, strict=True)]
            for triple in model.facts().itertuples(index=False)
        ]
    )
    prior = InteriorPrior.of_facts(model.kge.sheaf(), model.vectors(), facts)
    weights = [value for value, x in model.scorer()._groups for _ in range(x.shape[1])]
    node = tree(model, "n0", ("next", "far"))
    numbers = prior.centre.numpy(), prior.entries.numpy()
    want = best_scores(node, model.kge.sheaf(), model.vectors().numpy(), weights, numbers)
    frame = model.answer("via(far, via(next, n0))", model.num_entities, prior=True, explain=True)
    got = frame.iloc[::2].set_index("answer")["score"].loc[list(model.labels())]
    np.testing.assert_allclose(got, want, atol=1e-6)
    sums = frame["edge_energy"].to_numpy().reshape(-1, 2).sum(1)
    np.testing.assert_allclose(sums, frame["energy"].iloc[::2], rtol=1e-6)
    one = "via(next, n1)"
    pd.testing.assert_frame_equal(model.answer(one, 5, prior=True), model.answer(one, 5))


def test_known_answers_follow_from_the_facts():
    model = sheaf_model("transe").extend(FACTS)
    frame = model.answer("via(far, via(skip, n0))", 99)
    # n0 -skip-> n1, n1 -far-> n1; and the ring of the trained ones.
    assert set(frame["answer"][frame["known"]]) == {"n1"}
    frame = model.answer("and(via(next, a3), via(skip, a3))", 99)
    assert set(frame["answer"][frame["known"]]) == {"n2"}
    frame = model.answer("or(via(next, a3), via(skip, a3))", 99)
    assert set(frame["answer"][frame["known"]]) == {"a4", "a5", "n2"}
    assert len(frame) == model.num_entities


def test_several_queries_keep_their_order():
    model = sheaf_model("rotate").extend(FACTS)
    queries = ["via(next, a0)", "and(via(far, a1), via(next, n1))", "via(skip, n0)"]
    many = model.answer(queries, 3)
    one = pd.concat([model.answer(query, 3) for query in queries], ignore_index=True)
    pd.testing.assert_frame_equal(many, one)
    python = [Query.entity("a0").via("next"), *queries[1:]]
    pd.testing.assert_frame_equal(model.answer(python, 3), many)
    nothing = model.answer([], 3, explain=True)
    assert len(nothing) == 0
    assert list(nothing.columns)[:2] == ["query", "answer"]


def test_what_is_extended_is_answered_with():
    model = sheaf_model("transe")
    grown = model.extend(ADRIFT).extend([("late", "next", "a3")])
    frame = grown.answer("via(next, late)", 99)
    assert len(frame) == grown.num_entities
    assert set(frame["origin"]) == {"trained", "extended", "unanchored"}
    assert bool(frame.set_index("answer").loc["a3", "known"])
    assert "late" not in set(model.answer("via(next, a2)", 99)["answer"])
    with pytest.raises(DataError, match="'late'"):
        grown.remove("late").answer("via(next, late)")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("via(next, A0)", "did you mean 'a0'"),
        ("via(nxt, a0)", "did you mean 'next'"),
        ("via(next, a0", "position"),
        ("", "expected an entity or a query"),
        ("a0", "an entity alone asks for nothing"),
        ("and(via(next, a0), a1)", "queries via relations"),
        ("not(via(next, a0))", "negation"),
        (Query.entity("a0").via("next") & ~Query.entity("a1").via("next"), "negation|'not'"),
    ],
)
def test_queries_that_cannot_be_answered_are_named(query, message):
    model = sheaf_model("transe")
    with pytest.raises(DataError, match=message):
        model.answer(query)
    with pytest.raises(DataError, match=rf"query 2, (?s:.*)({message})"):
        model.answer(["via(next, a0)", query])


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_k_must_be_a_positive_integer(k):
    with pytest.raises(ValueError, match="'k' must be an integer of at least 1"):
        sheaf_model("transe").answer("via(next, a0)", k)


def test_scores_are_finite_numbers_in_single_precision():
    model = sheaf_model("rotate", dtype=torch.float32).extend(FACTS, propagation="selected")
    frame = model.answer(list(QUERIES), 99)
    assert np.isfinite(frame["score"]).all()
    assert frame["known"].dtype == bool
