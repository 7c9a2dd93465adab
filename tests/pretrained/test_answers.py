import json

import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop.errors import DataError
from sheafprop.kge import KGE_REGISTRY
from sheafprop.pretrained.graph_scorer import SPREAD
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
        frame = model.answer(text, k=model.num_entities, interior="free")
        assert set(frame["query"]) == {text}
        want = expected_scores(model, tree(model, start, path))
        got = frame.set_index("answer")["score"].loc[list(model.labels())]
        np.testing.assert_allclose(got, want, atol=1e-6)
        assert list(frame["score"]) == sorted(frame["score"], reverse=True)
    both = ("and", tuple(tree(model, *QUERIES[text]) for text in list(QUERIES)[:2]))
    frame = model.answer("and(via(next, n1), via(inverse(far), a3))", 4, interior="free")
    want = np.sort(expected_scores(model, both))[::-1][:4]
    np.testing.assert_allclose(frame["score"], want, atol=1e-6)
    either = ("or", both[1])
    frame = model.answer("or(via(next, n1), via(inverse(far), a3))", 4, interior="free")
    want = np.sort(expected_scores(model, either))[::-1][:4]
    np.testing.assert_allclose(frame["score"], want, atol=1e-6)


@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_one_step_is_a_prediction_with_its_energy(name):
    model = sheaf_model(name).extend(FACTS)
    answers = model.answer("via(next, n1)", 5, interior="free")
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
    plain, split = (
        model.answer(text, 3, interior="free"),
        model.answer(text, 3, explain=True, interior="free"),
    )
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
    frame = model.answer(
        "via(far, via(next, n0))", model.num_entities, prior=True, explain=True, interior="free"
    )
    got = frame.iloc[::2].set_index("answer")["score"].loc[list(model.labels())]
    np.testing.assert_allclose(got, want, atol=1e-6)
    sums = frame["edge_energy"].to_numpy().reshape(-1, 2).sum(1)
    np.testing.assert_allclose(sums, frame["energy"].iloc[::2], rtol=1e-6)
    one = "via(next, n1)"
    pd.testing.assert_frame_equal(
        model.answer(one, 5, prior=True, interior="free"), model.answer(one, 5, interior="free")
    )


def test_known_answers_follow_from_the_facts():
    model = sheaf_model("transe").extend(FACTS)
    frame = model.answer("via(far, via(skip, n0))", 99, interior="free")
    # n0 -skip-> n1, n1 -far-> n1; and the ring of the trained ones.
    assert set(frame["answer"][frame["known"]]) == {"n1"}
    frame = model.answer("and(via(next, a3), via(skip, a3))", 99, interior="free")
    assert set(frame["answer"][frame["known"]]) == {"n2"}
    frame = model.answer("or(via(next, a3), via(skip, a3))", 99, interior="free")
    assert set(frame["answer"][frame["known"]]) == {"a4", "a5", "n2"}
    assert len(frame) == model.num_entities


def test_several_queries_keep_their_order():
    model = sheaf_model("rotate").extend(FACTS)
    queries = ["via(next, a0)", "and(via(far, a1), via(next, n1))", "via(skip, n0)"]
    many = model.answer(queries, 3, interior="free")
    one = pd.concat(
        [model.answer(query, 3, interior="free") for query in queries], ignore_index=True
    )
    pd.testing.assert_frame_equal(many, one)
    python = [Query.entity("a0").via("next"), *queries[1:]]
    pd.testing.assert_frame_equal(model.answer(python, 3, interior="free"), many)
    nothing = model.answer([], 3, explain=True, interior="free")
    assert len(nothing) == 0
    assert list(nothing.columns)[:2] == ["query", "answer"]


def test_what_is_extended_is_answered_with():
    model = sheaf_model("transe")
    grown = model.extend(ADRIFT).extend([("late", "next", "a3")])
    frame = grown.answer("via(next, late)", 99, interior="free")
    assert len(frame) == grown.num_entities
    assert set(frame["origin"]) == {"trained", "extended", "unanchored"}
    assert bool(frame.set_index("answer").loc["a3", "known"])
    assert "late" not in set(model.answer("via(next, a2)", 99, interior="free")["answer"])
    with pytest.raises(DataError, match="'late'"):
        grown.remove("late").answer("via(next, late)", interior="free")


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
        model.answer(query, interior="free")
    with pytest.raises(DataError, match=rf"query 2, (?s:.*)({message})"):
        model.answer(["via(next, a0)", query], interior="free")


def test_a_query_is_a_text_or_a_query():
    with pytest.raises(TypeError, match=r"a query must be a text or a Query \(got 3\)"):
        sheaf_model("transe").answer(["via(next, a0)", 3])


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_k_must_be_a_positive_integer(k):
    with pytest.raises(ValueError, match="'k' must be an integer of at least 1"):
        sheaf_model("transe").answer("via(next, a0)", k, interior="free")


def test_scores_are_finite_numbers_in_single_precision():
    model = sheaf_model("rotate", dtype=torch.float32).extend(FACTS, propagation="selected")
    frame = model.answer(list(QUERIES), 99, interior="free")
    assert np.isfinite(frame["score"]).all()
    assert frame["known"].dtype == bool


# Vertices between that are entities -----------------------------------------------------------


def link_probabilities(model, relation, inverse=False):
    """``p[u, v]`` of one relation from the formula, by the scores of the vectors alone."""
    x, weights = model.vectors(), [1.0]
    if x.shape[1] > 1:
        weights = [value for value, part in model.scorer()._groups for _ in range(part.shape[1])]
    labels, count = model.labels(), model.num_entities
    head, tail = (a.flatten() for a in torch.meshgrid(*[torch.arange(count)] * 2, indexing="ij"))

    def scores(kind):
        kinds = torch.full_like(head, kind)
        parts = [
            w * model.kge.score_triples(x[:, i], head, kinds, tail) for i, w in enumerate(weights)
        ]
        return sum(parts).detach().numpy().reshape(count, count)

    facts = model.facts()
    step = max(1, len(facts) // 32)
    asked = [(labels.index(h), model.relations.index[r]) for h, r, _ in facts.to_numpy()]
    spread = np.mean([scores(r)[u].std() for u, r in asked[::step][:32]])
    values = SPREAD / spread * scores(model.relations.index[relation])
    values = values.T if inverse else values
    known = np.zeros((count, count), dtype=bool)
    for h, r, t in facts.to_numpy():
        if r == relation:
            ends = (labels.index(h), labels.index(t))
            known[ends[::-1] if inverse else ends] = True
    shares = np.exp(values - values.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    predicted = np.minimum(0.999, np.maximum(1, known.sum(1, keepdims=True)) * shares)
    return np.where(known, 1.0, predicted)


@pytest.mark.parametrize("propagation", ["exact", "selected"])
@pytest.mark.parametrize("name", ["transe", "rotate", "se"])
def test_an_answer_is_as_true_as_its_best_way_over_entities(name, propagation):
    model = sheaf_model(name).extend(FACTS, propagation=propagation)
    first, second = link_probabilities(model, "next"), link_probabilities(model, "far", True)
    against = link_probabilities(model, "skip")
    labels = list(model.labels())
    start, other = labels.index("n0"), labels.index("a3")
    path = (first[start][:, None] * second).max(0)
    for text, expected in (
        ("via(inverse(far), via(next, n0))", path),
        (
            "and(via(inverse(far), via(next, n0)), not(via(skip, a3)))",
            path * (1 - against[other]),
        ),
        (
            "or(via(next, n0), via(skip, a3))",
            1 - (1 - first[start]) * (1 - against[other]),
        ),
    ):
        frame = model.answer(text, model.num_entities, beam="all")
        assert set(frame["interior"]) == {"entities"}
        assert frame["certain"].all()
        got = frame.set_index("answer")["truth"].reindex(labels, fill_value=0.0)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-12)
        assert list(frame["truth"]) == sorted(frame["truth"], reverse=True)
    pd.testing.assert_frame_equal(
        model.answer(text, 3), model.answer(text, 3, interior="entities", beam=64)
    )


def test_queries_over_entities_keep_their_order():
    model = sheaf_model("rotate").extend(FACTS)
    queries = ["via(far, via(next, a0))", "via(next, a1)", "via(far, via(next, n0))"]
    for derivations in (0, 1):
        frame = model.answer(queries, 2, derivations=derivations)
        assert list(frame["query"].unique()) == queries
        for query in queries:
            alone = model.answer(query, 2, derivations=derivations)
            own = frame[frame["query"] == query].reset_index(drop=True)
            assert own.drop(columns=["query"]).equals(alone.drop(columns=["query"]))
    assert [tree["query"] for tree in frame.attrs["derivations"]] == [
        query for query in queries for _ in range(2)
    ]
    with pytest.raises(DataError, match=r"^1 of the given labels"):
        model.answer("via(next, zz)")


def test_facts_are_certain_and_known():
    model = sheaf_model("transe").extend(FACTS)
    frame = model.answer("via(far, via(skip, n0))", 99)
    assert set(frame["answer"][frame["known"]]) == {"n1"}
    assert (frame["truth"][frame["known"]] == 1).all()
    assert list(frame.columns)[:2] == ["query", "answer"]
    assert frame["interior"].tolist() == ["entities"] * len(frame)
    many = model.answer(["via(next, a0)", "via(far, via(skip, n0))"], 4)
    pd.testing.assert_frame_equal(many[4:].reset_index(drop=True), frame[:4])
    assert model.answer([], 3).empty


def test_a_narrow_beam_says_what_it_cannot_vouch_for():
    model = sheaf_model("rotate").extend(FACTS)
    text = "via(far, via(skip, via(next, a0)))"
    narrow = model.answer(text, 12, beam=1)
    assert not narrow["certain"].all()
    whole = model.answer(text, 12, beam="all")
    sure = narrow["certain"].to_numpy()
    assert sure.any()
    assert list(narrow["answer"][sure]) == list(whole["answer"][sure])


def test_derivations_name_entities_facts_and_predicted_links():
    model = sheaf_model("rotate").extend(FACTS)
    text = "and(via(inverse(far), via(next, n0)), not(via(skip, a3)))"
    plain, frame = model.answer(text, 3), model.answer(text, 3, derivations=2)
    assert list(frame["answer"].unique()) == list(plain["answer"])
    assert set(frame["relation"]) == {"next", "inverse(far)", "skip"}
    facts = set(map(tuple, model.facts().to_numpy()))
    for (answer, number), links in frame.groupby(["answer", "derivation"], sort=False):
        own = links[~links["negated"]]
        product = own["link_probability"].prod()
        against = links[links["negated"]]["link_probability"].max()
        assert links["derivation_truth"].iloc[0] == pytest.approx(product * (1 - against))
        if number == 1:
            assert links["derivation_truth"].iloc[0] == pytest.approx(links["truth"].iloc[0])
        assert own["target"].iloc[0] == answer
        assert list(own["depth"]) == [0, 1]
        assert own["source"].iloc[1] == "n0"
        for _, link in links.iterrows():
            ends = link["source"], link["target"]
            name = link["relation"].removeprefix("inverse(").removesuffix(")")
            head, tail = ends[::-1] if link["relation"] != name else ends
            assert (link["link"] == "fact") == ((head, name, tail) in facts)
    trees = frame.attrs["derivations"]
    assert [tree["answer"] for tree in trees] == list(plain["answer"])
    assert all(len(tree["derivations"]) == 2 for tree in trees)
    assert json.loads(json.dumps(trees)) == trees
    assert trees[0]["derivations"][0]["branches"][1]["operator"] == "not"


@pytest.mark.parametrize(
    "query", ["and(a3, a3)", "or(a3, a5)", "not(not(via(next, n0)))", "and(a1, not(via(skip, a3)))"]
)
def test_every_answer_has_a_row_with_its_derivation(query):
    model = sheaf_model("rotate").extend(FACTS)
    plain, frame = model.answer(query, 20), model.answer(query, 20, derivations=2)
    assert list(frame["answer"].unique()) == list(plain["answer"])
    assert not frame.isna().any().any()
    bare = frame[frame["link"] == "none"]
    assert len(bare) == (0 if "not" in query else len(plain))
    assert (bare["target"] == bare["answer"]).all()
    assert (bare["link_probability"] == 1).all()


def test_queries_that_contradict_themselves_have_no_answer():
    model = sheaf_model("rotate").extend(FACTS)
    frame = model.answer("and(a0, a1)")
    assert frame.empty
    assert list(frame.columns) == list(model.answer("via(next, a0)").columns)
    frame = model.answer("via(far, and(a0, a1))", derivations=1)
    assert frame.empty
    assert frame.attrs["derivations"] == []
    frame = model.answer("and(via(next, a0), not(via(next, a0)))", 99)
    assert set(frame["answer"]) < set(model.labels())
    assert frame["truth"].between(0, 1).all()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("via(next, A0)", "did you mean 'a0'"),
        ("a0", "an entity alone asks for nothing"),
        ("not(via(next, a0))", "all entities but some would answer a negation"),
        ("via(far, not(via(next, a0)))", "cannot be walked from all entities but some"),
        ("or(via(next, a0), not(via(far, a1)))", "an 'or' with a negated branch"),
    ],
)
def test_queries_over_entities_that_cannot_be_answered_are_named(query, message):
    model = sheaf_model("transe")
    with pytest.raises(DataError, match=message):
        model.answer(query)
    with pytest.raises(DataError, match=rf"query 2, (?s:.*)({message})"):
        model.answer(["via(next, a0)", query])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": 0}, ValueError, "'k' must be"),
        ({"beam": 0}, ValueError, "'beam' must be"),
        ({"derivations": -1}, ValueError, "'derivations' must be"),
        ({"interior": "fre"}, ValueError, "'interior' must be one of"),
        ({"prior": True}, ValueError, "give interior='free'"),
        ({"explain": True}, ValueError, "give interior='free'"),
        ({"interior": "free", "derivations": 1}, ValueError, "need interior='entities'"),
        ({"min_probability": 2.0}, ValueError, "between 0 and 1"),
        ({"min_probability": 0.5}, DataError, "needs a calibrated model"),
    ],
)
def test_arguments_belong_to_their_interior(arguments, error, message):
    with pytest.raises(error, match=message):
        sheaf_model("transe").answer("via(next, a0)", **arguments)
