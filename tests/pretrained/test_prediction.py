import itertools
import random

import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop.errors import DataError
from sheafprop.kge import KGE_REGISTRY
from sheafprop.pretrained import prediction
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.prediction import BestOf
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.sheaf import edge_energy
from tests.pretrained.models import FACTS, close, sheaf_model, stored_model
from tests.pretrained.test_graph_scorer import with_episodes
from tests.pretrained.test_new_relations import BACK, OVER, fit

MODELS = sorted(KGE_REGISTRY)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("propagation", ["exact", "selected"])
def test_predictions_are_those_of_the_scores(name, p, squared, propagation):
    model = sheaf_model(name, p=p, squared=squared).extend(FACTS, propagation=propagation)
    scorer, labels = model.scorer(), model.labels()
    for entity, relation in itertools.product(("a3", "n1"), ("next", "far")):
        e = torch.tensor([labels.index(entity)])
        r = torch.tensor([model.relations.index[relation]])
        for side in ("tail", "head"):
            if side == "tail":
                frame = model.predict_tails(entity, relation, 6, include_known=True)
                expected = scorer.score_tails(e, r)[0]
            else:
                frame = model.predict_heads(relation, entity, 6, include_known=True)
                expected = scorer.score_heads(r, e)[0]
            value, best = torch.sort(expected, descending=True, stable=True)
            close(torch.tensor(frame["score"]), value[:6], 1e-6)
            # Equal scores (distance zero) may differ by rounding in the reference.
            assert set(frame[side]) == {labels[i] for i in best[:6]}
            assert list(frame["score"]) == sorted(frame["score"], reverse=True)
            column = "head" if side == "tail" else "tail"
            assert set(frame[column]) == {entity}


def test_known_answers_are_left_out_unless_asked_for():
    model = sheaf_model("rotate").extend(FACTS)
    plain = model.predict_tails("a3", "next", k=100)
    assert len(plain) == model.num_entities - 2
    assert not {"a4", "n2"} & set(plain["tail"])
    everything = model.predict_tails("a3", "next", k=100, include_known=True)
    assert len(everything) == model.num_entities
    assert set(everything["tail"][everything["known"]]) == {"a4", "n2"}
    assert set(everything["origin"]) == {"trained", "extended"}


def test_many_queries_at_once():
    model = sheaf_model("transe").extend(FACTS)
    many = model.predict_tails(["a0", "n1"], "next", k=2)
    one = pd.concat([model.predict_tails(e, "next", k=2) for e in ("a0", "n1")], ignore_index=True)
    pd.testing.assert_frame_equal(many, one)
    for kinds in (["next", "far"], ["far", "next"]):
        paired = model.predict_heads(kinds, ["a0", "n1"], k=2)
        assert list(paired["relation"]) == [kind for kind in kinds for _ in range(2)]
    assert len(model.predict_tails([], "next")) == 0
    with pytest.raises(ValueError, match="one for each of the 2"):
        model.predict_tails(["a0", "a1"], ["next"])


def test_queries_of_one_relation_are_scored_together(monkeypatch):
    model, batches = sheaf_model("transe"), []
    best = prediction._best_candidates

    def watched(state, side, ends, kinds, *more, **named):
        batches.append(kinds.tolist())
        return best(state, side, ends, kinds, *more, **named)

    monkeypatch.setattr(prediction, "_best_candidates", watched)
    monkeypatch.setattr(ModelState, "queries_at_once", lambda self: 8)
    queries = list(itertools.product(model.labels(), model.relations.labels))
    random.Random(2).shuffle(queries)
    frame = model.predict([(head, relation, None) for head, relation in queries], 1)
    assert list(zip(frame["head"], frame["relation"], strict=True)) == queries
    assert sum(map(len, batches)) == len(queries)
    groups = sum(len(set(batch)) for batch in batches)
    assert groups < len(model.relations) + len(batches)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_k_must_be_a_positive_integer(k):
    with pytest.raises(ValueError, match="'k' must be an integer of at least 1"):
        sheaf_model("transe").predict_tails("a0", "next", k=k)


@pytest.mark.parametrize("k", [1, 3, 7, 50])
@pytest.mark.parametrize("sizes", [[20], [3, 1, 9, 7], [1] * 20])
def test_the_best_of_blocks_are_the_first_of_a_stable_sort(k, sizes):
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        # Few values, so that many are equal, and some that are none.
        scores = torch.randint(0, 4, (20,), generator=g).float()
        scores[torch.rand(20, generator=g) < 0.2] = -torch.inf
        best, first = BestOf(k), 0
        for part in scores.split(sizes):
            best.add(first, part)
            first += len(part)
        value, order = torch.sort(scores, descending=True, stable=True)
        kept = order[:k][value[:k] > -torch.inf].sort().values
        assert best.found.tolist() == kept.tolist()
        assert torch.equal(best.value.float(), scores[kept])


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_model(name):
    model = sheaf_model(name).extend(FACTS)
    triples = [("n0", "next", "a1"), ("a2", "far", "n1"), ("a0", "next", "a1"), ("a0", "far", "a1")]
    frame = model.score(triples)
    assert list(frame["known"]) == [True, False, True, False]
    labels = model.labels()
    h, t = (torch.tensor([labels.index(row[i]) for row in triples]) for i in (0, 2))
    r = model.relations.ids([row[1] for row in triples])
    close(frame["score"], model.scorer().score_tails(h, r)[range(len(t)), t])


@pytest.mark.parametrize("name", MODELS)
def test_an_explanation_gives_every_fact_its_energy(name):
    model = sheaf_model(name).extend([*FACTS, ("n0", "next", "a9")])
    frame = model.explain("n0")
    assert list(frame["energy"]) == sorted(frame["energy"], reverse=True)
    assert sorted(map(tuple, frame[["head", "relation", "tail"]].to_numpy())) == sorted(
        [t for t in [*FACTS, ("n0", "next", "a9")] if "n0" in t]
    )
    labels = model.labels()
    edges = torch.tensor(
        [
            [labels.index(h), labels.index(t)]
            for h, t in zip(frame["head"], frame["tail"], strict=True)
        ]
    ).T
    types = model.relations.ids(frame["relation"])
    energy = edge_energy(model.vectors()[:, 0], edges, types, model.kge.sheaf()).detach()
    close(frame["energy"], energy)
    stored = stored_model(name)
    close(frame["ratio"], energy / stored.residual_variance[types])


def test_an_explained_triple_comes_first():
    model = sheaf_model("transe").extend(FACTS)
    asked = model.explain(("n0", "next", "a2"))
    assert tuple(asked.iloc[0][["head", "relation", "tail"]]) == ("n0", "next", "a2")
    assert list(asked["fact"])[:2] == [False, True]
    observed = model.explain(("n0", "next", "a1"))
    assert bool(observed["fact"].all())
    facts = model.facts()
    ends = {"n0", "a1"}
    assert len(observed) == sum(h in ends or t in ends for h, _, t in facts.to_numpy())


def test_a_contradicting_fact_stands_out():
    model = sheaf_model("transe")
    x, relations = model.kge.entity_vectors().detach(), model.relations.index
    # Facts that agree with a0's own place, and one that does not.
    with torch.no_grad():
        for name, step in (("next", 1), ("skip", 2)):
            model.kge.rel_emb.weight[relations[name]] = x[model.labels().index(f"a{step}")] - x[0]
    grown = SheafModel(model.stored()).extend(
        [("n", "next", "a1"), ("n", "skip", "a2"), ("n", "next", "a1"), ("n", "next", "a7")]
    )
    worst = grown.explain("n").iloc[0]
    assert worst["tail"] == "a7"


def order_of_neighbours(model, tmp_path, query):
    model.export(tmp_path / "vectors.npy")
    table = np.load(tmp_path / "vectors.npy").astype(np.float64)
    distance = np.linalg.norm(table - query.numpy(), axis=1)
    return [model.labels()[i] for i in np.argsort(distance)], np.sort(distance)


@pytest.mark.parametrize("name", ["transe", "rotate", "um"])
@pytest.mark.parametrize("side", ["tail", "head"])
def test_nearest_neighbours_are_the_predictions(name, side, tmp_path):
    model = sheaf_model(name).extend(FACTS)
    query = model.query_vectors(["n0", "a3"], "far", side=side)
    for label, row in zip(("n0", "a3"), query, strict=True):
        found, distance = order_of_neighbours(model, tmp_path, row)
        if side == "tail":
            frame = model.predict_tails(label, "far", k=99, include_known=True)
        else:
            frame = model.predict_heads("far", label, k=99, include_known=True)
        assert frame[side].tolist() == found
        close(frame["score"], -torch.from_numpy(distance), tol=1e-6)


@pytest.mark.parametrize("name", ["lineare", "se", "stranse"])
def test_relations_that_were_fitted_with_the_identity_at_tails_have_some_too(name, tmp_path):
    model = fit(sheaf_model(name), [*BACK, *OVER])
    query = model.query_vectors("a4", "over")[0]
    found, _ = order_of_neighbours(model, tmp_path, query)
    frame = model.predict_tails("a4", "over", k=99, include_known=True)
    assert frame["tail"].tolist() == found
    with pytest.raises(ValueError, match=r"maps tails of 'far' so that .* ask predict_tails"):
        model.query_vectors("a4", "far")
    if name == "lineare":
        with pytest.raises(ValueError, match="maps heads of 'over'"):
            model.query_vectors("a4", "over", side="head")


def test_maps_that_scale_all_directions_alike_are_divided_by_their_square(tmp_path):
    model = sheaf_model("pairre")
    with torch.no_grad():
        model.kge.rel_map_tail.fill_(-3.0)
    query = model.query_vectors("a4", "far")[0]
    found, _ = order_of_neighbours(model, tmp_path, query)
    frame = model.predict_tails("a4", "far", k=99, include_known=True)
    assert frame["tail"].tolist() == found


def test_where_neighbours_are_no_predictions_it_says_so():
    cases = [
        (sheaf_model("transe", p=1.0), "by the 1-norm"),
        (sheaf_model("transe").extend(FACTS, propagation="selected"), "several vectors of each"),
        (sheaf_model("transr", relation_channels=2), "TransR maps tails"),
        (with_episodes(), "with_scores"),
    ]
    for model, message in cases:
        with pytest.raises(ValueError, match=message):
            model.query_vectors("a4", "far")
    plain = with_episodes().with_scores(episodes=False, proximity=0, own_last=False)
    assert plain.query_vectors("a4", "far").shape == (1, 8)
    with pytest.raises(ValueError, match="'side' must be one of"):
        plain.query_vectors("a4", "far", side="both")
    for words in (("a4", "fra"), ("b4", "far")):
        with pytest.raises(DataError):
            plain.query_vectors(*words)
